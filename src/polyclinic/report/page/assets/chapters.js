// A study holds several comparisons: one of them is shown at a time.
let chapter = "0";

function showChapter() {
  document.querySelectorAll("section").forEach((section) => {
    const heading = section.querySelector("h2[data-chapter]");
    if (heading) section.hidden = heading.dataset.chapter !== chapter;
  });
  document.querySelectorAll("[data-show]").forEach((button) => {
    button.setAttribute("aria-pressed", String(button.dataset.show === chapter));
  });
}

function prepareChapters() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-show]");
    if (!button) return;
    chapter = button.dataset.show;
    showChapter();
    drawCharts();
  });
  showChapter();
}
