"""Files that travel with an exported model. They need numpy and what reads images, and nothing of polyclinic."""
