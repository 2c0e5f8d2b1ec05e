// On every page: the choice of theme. Kept in a cookie, so that the server draws the page in it at once.

import { KEPT } from "./api";

type Theme = "auto" | "light" | "dark";
const order: Theme[] = ["auto", "light", "dark"];

const button = document.querySelector<HTMLButtonElement>("#theme");
if (button) {
  const now = (): Theme => (document.documentElement.dataset.theme as Theme | undefined) ?? "auto";
  const show = (): void => {
    button.textContent = `Theme: ${now()}`;
  };
  show();
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(now()) + 1) % order.length] ?? "auto";
    if (next === "auto") {
      delete document.documentElement.dataset.theme;
    } else {
      document.documentElement.dataset.theme = next;
    }
    document.cookie = `telesto_theme=${next}; Path=/; Max-Age=31536000; SameSite=Strict`;
    show();
    document.dispatchEvent(new CustomEvent("theme"));
  });
}

// What is scrolled sideways on a small screen shows where one is.
document.querySelector("nav.pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// Who logs out leaves no SQL text to whoever logs in next in this tab.
document.querySelector('form[action="/logout"]')?.addEventListener("submit", () => {
  for (const name of Object.keys(sessionStorage)) {
    if (name.startsWith(KEPT)) sessionStorage.removeItem(name);
  }
});
