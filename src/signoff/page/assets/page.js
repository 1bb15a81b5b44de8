// What HTML cannot: saying aloud what has changed, and that there is no answer any more. The rest is htmx.
"use strict";
(() => {
  const said = document.getElementById("said");
  const unreached = document.getElementById("unreached");
  const since = document.getElementById("since");
  let last = document.querySelector("[data-say]")?.textContent.trim();

  document.addEventListener("htmx:afterSwap", () => {
    unreached.hidden = true;
    const now = document.querySelector("[data-say]")?.textContent.trim();
    if (now && now !== last) said.textContent = now;
    last = now;
  });

  const lost = () => {
    if (!unreached.hidden) return;
    since.textContent = document.querySelector(".as-of time")?.textContent ?? "before";
    unreached.hidden = false;
  };
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(name, lost);
  }

  // A part that is replaced must not take away what somebody is reading or has scrolled to.
  let places = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    const chosen = document.getSelection();
    if (chosen && !chosen.isCollapsed && event.detail.target.contains(chosen.anchorNode)) {
      event.detail.shouldSwap = false;
      return;
    }
    places = [...event.detail.target.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const found = event.detail.target.querySelectorAll(".scroll");
    if (found.length === places.length) found.forEach((each, index) => { each.scrollLeft = places[index]; });
  });
})();
