// What the pages do besides, where scripts run: nothing needs this file.
"use strict";

// Ask before what can't be undone.
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

// One box that ticks all of its name.
for (const all of document.querySelectorAll("input[data-all]")) {
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const box of all.form.querySelectorAll(`input[type=checkbox][name="${all.dataset.all}"]`)) box.checked = all.checked;
  });
}

// The reader's own time, when the mouse rests on one.
const localTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]")) time.title = new Date(time.dateTime).toLocaleString() + " here";
};
localTimes(document);

// Parts that change by themselves are fetched again, unless somebody works in them.
const refresh = async () => {
  const part = document.querySelector("#live[data-live]");
  if (!part) return;
  const busy = document.hidden || part.contains(document.activeElement) && document.activeElement !== document.body
    || [...part.querySelectorAll("input:not([type=hidden])")].some((input) => input.value !== input.defaultValue);
  if (!busy) {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok && !answer.redirected) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#live");
        if (fresh && !part.contains(document.activeElement)) {
          part.replaceWith(fresh);
          localTimes(fresh);
        }
      }
    } catch {
      // the process is away; the next turn asks again
    }
  }
  schedule();
};
const schedule = () => {
  const part = document.querySelector("#live[data-live]");
  if (part) setTimeout(refresh, 1000 * Number(part.dataset.live));
};
schedule();
