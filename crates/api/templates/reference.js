// The search field and the copy buttons of the page at /docs. Without this script the page has neither.
const field = document.getElementById("search");
const cards = [...document.querySelectorAll("main .card")].map((card) => [card, card.textContent.toLowerCase()]);
const sections = [...document.querySelectorAll("main section")];

field.parentElement.hidden = false;
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [card, text] of cards) card.hidden = !words.every((word) => text.includes(word));
  for (const section of sections) section.hidden = !section.querySelector(".card:not([hidden])");
});

for (const example of document.querySelectorAll("main pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(example.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  example.before(button);
}

// A link to an operation opens it.
const open = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", open);
open();
