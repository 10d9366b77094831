// What the pages of the dashboard have beyond HTML: copy buttons, search in tables, live parts, and the figures of a
// chart's column. Every page works without it.

const make = (name, properties, parent) => {
  const element = Object.assign(document.createElement(name), properties);
  parent?.append(element);
  return element;
};

// A button beside each example, secret and id.
const addCopyButtons = (root) => {
  // Browsers have no clipboard on pages that came without TLS from another machine.
  if (!navigator.clipboard) return;
  for (const source of root.querySelectorAll("pre, [data-copy]")) {
    const button = make("button", { type: "button", className: "copy small", textContent: source.dataset.copy || "Copy" });
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(source.dataset.text ?? source.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = source.dataset.copy || "Copy"), 2000);
    });
    if (source.matches("pre, .secret")) source.before(button);
    else source.after(button);
  }
};
addCopyButtons(document);

// A field that hides the rows of a table without its words. A slash leads to it.
for (const table of document.querySelectorAll("table[data-search]")) {
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  if (rows.length < 6) continue;
  const label = make("label", { className: "search" });
  make("span", { className: "sr", textContent: table.dataset.search }, label);
  const field = make("input", { type: "search", placeholder: table.dataset.search }, label);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
  });
  table.closest(".scroll").before(label);
}
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
  const field = document.querySelector("input[type=search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
});

// Parts that the service sends again while the page is seen.
const live = document.querySelector("[data-live]");
if (live) {
  let events;
  const listen = () => {
    events?.close();
    events = undefined;
    if (document.hidden) return;
    events = new EventSource(live.dataset.live);
    events.onmessage = ({ data }) => {
      for (const [id, html] of Object.entries(JSON.parse(data))) {
        const part = document.getElementById(id);
        // A part that is used at the moment stays as it is.
        if (part && html !== null && part.innerHTML !== html && !part.contains(document.activeElement)) {
          part.innerHTML = html;
        }
      }
    };
  };
  document.addEventListener("visibilitychange", listen);
  listen();
}

// The figures of a column, beside the pointer.
for (const plot of document.querySelectorAll(".plot")) {
  const tip = make("div", { className: "tip", hidden: true }, plot);
  tip.setAttribute("aria-hidden", "true");
  for (const column of plot.querySelectorAll("g")) {
    const title = column.querySelector("title");
    const text = title.textContent;
    title.remove();
    column.addEventListener("pointerenter", () => {
      tip.textContent = text;
      tip.hidden = false;
    });
    column.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const isRight = event.clientX - box.left > box.width / 2;
      tip.style.left = isRight ? "" : `${event.clientX - box.left + 14}px`;
      tip.style.right = isRight ? `${box.right - event.clientX + 14}px` : "";
      tip.style.top = `${event.clientY - box.top}px`;
    });
  }
  plot.addEventListener("pointerleave", () => (tip.hidden = true));
}

// A second click on a button of a form sends nothing.
addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.isSent) event.preventDefault();
  form.dataset.isSent = "true";
});
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.isSent;
});

// An open menu closes with Escape, and with a click elsewhere.
const closeMenus = (kept) => {
  for (const menu of document.querySelectorAll("details.pop[open]")) if (menu !== kept) menu.open = false;
};
addEventListener("keydown", (event) => event.key === "Escape" && closeMenus());
addEventListener("click", (event) => closeMenus(event.target.closest("details.pop")));
