// Before anything is shown: the theme that was chosen here last, so that no page flashes.
(function () {
  "use strict";
  try {
    var theme = localStorage.getItem("polyclinic-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch (error) {
    // A page from a file may not be allowed to remember anything.
  }
})();
