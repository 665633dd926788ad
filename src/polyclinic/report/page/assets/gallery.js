// The gallery: slices, and which masks lie over the images.
function showSlice(element, place) {
  const entry = page.gallery.cases[Number(element.dataset.case)];
  const slice = entry.slices[place];
  element.querySelectorAll("img").forEach((image) => {
    const kind = image.dataset.kind;
    const file = kind === "prediction" ? slice.predictions[Number(image.dataset.place)] : slice[kind];
    const address = file === null ? undefined : page.gallery.files[file];
    image.hidden = address === undefined;
    if (address !== undefined) image.src = address;
  });
  const output = element.querySelector("output");
  if (output) output.textContent = slice.index;
}

function prepareGallery(root) {
  root.querySelectorAll(".case").forEach((element) => {
    const slider = element.querySelector(".slider input");
    showSlice(element, page.gallery.cases[Number(element.dataset.case)].first);
    if (slider) slider.addEventListener("input", () => showSlice(element, Number(slider.value)));
  });
  root.querySelectorAll(".controls").forEach((controls) => {
    const section = controls.closest("section");
    const [prediction, truth, opacity] = ["prediction", "truth", "opacity"].map((name) =>
      controls.querySelector(`[data-layer="${name}"]`),
    );
    const apply = () => {
      section.classList.toggle("no-prediction", !prediction.checked);
      section.classList.toggle("with-truth", truth.checked);
      section.style.setProperty("--opacity", opacity.value / 100);
    };
    controls.addEventListener("input", apply);
    apply();
  });
}
