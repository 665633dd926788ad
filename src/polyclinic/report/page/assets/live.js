// While a run goes on: ask for news, and change what has changed, nothing else.
const EVERY = 2000; // milliseconds

function replaceSection(name, html) {
  const section = document.getElementById(name) || addSection(name);
  section.innerHTML = html;
  prepareTables(section);
  prepareGallery(section);
}

function addSection(name) {
  const section = document.createElement("section");
  section.id = name;
  document.getElementById("main").append(section);
  return section;
}

function takeNews(news) {
  if (news.sections) {
    const before = page.fingerprints;
    page = news.data;
    for (const [name, html] of Object.entries(news.sections)) {
      // The chips keep what was pressed.
      if (name !== "methods" && page.fingerprints[name] !== before[name]) replaceSection(name, html);
    }
    showChapter();
    drawCharts();
  }
  const live = document.getElementById("live");
  if (live && news.live !== undefined && live.innerHTML !== news.live) live.innerHTML = news.live;
}

async function follow() {
  let version = page.version;
  for (;;) {
    let wait = EVERY;
    try {
      const answer = await fetch(`news?version=${encodeURIComponent(version)}`, { cache: "no-store" });
      const news = await answer.json();
      takeNews(news);
      version = news.version;
      if (news.over) return;
    } catch (error) {
      const live = document.getElementById("live");
      if (live) live.textContent = "polyclinic watch does not answer any more; what is shown is the last that it said.";
      wait = 5 * EVERY;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function start() {
  prepareTheme();
  preparePrinting();
  prepareTables(document);
  prepareGallery(document);
  prepareChips();
  prepareChapters();
  try {
    await loadLibrary();
    drawCharts();
  } catch (error) {
    sayNoCharts();
  }
  document.documentElement.dataset.ready = "true";
  if (document.body.hasAttribute("data-live")) follow();
}

start();
