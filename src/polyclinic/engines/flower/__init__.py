"""The Flower engine: carries messages between the server and sites on other machines."""
