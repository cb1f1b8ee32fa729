// Buttons that copy a link or save a file.

import { h, show } from "./dom";

/** Show a message on a button for 1.6 seconds. */
export function say(button: HTMLElement, text: string): void {
  const before = button.dataset["name"] ?? button.textContent ?? "";
  button.dataset["name"] = before;
  show(button, text);
  window.setTimeout(() => show(button, before), 1600);
}

export function copyButton(link: () => string): HTMLElement {
  const button = h("button", { type: "button", class: "copy", title: "A link to this sample and step" }, "Copy link");
  button.addEventListener("click", () => {
    const copied = navigator.clipboard?.writeText(link());
    if (copied) copied.then(() => say(button, "Copied"), () => say(button, "See the address bar"));
    else say(button, "See the address bar");
  });
  return button;
}

export function save(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
