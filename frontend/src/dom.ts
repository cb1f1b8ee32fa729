// Elements without markup: every text becomes a text node, so no data is ever read as HTML.

export type Child = Node | string | number | null | undefined | false;

export interface Props {
  [name: string]: string | number | boolean | ((event: never) => void) | Record<string, string> | undefined;
}

function fill(element: Element, props: Props, children: Child[]): void {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else if (typeof value === "object") {
      // custom properties, set through the object model: a strict content policy allows no style attributes
      for (const [key, text] of Object.entries(value)) (element as HTMLElement).style.setProperty(key, text);
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
}

function asNode(child: Child): Node | string {
  return child instanceof Node ? child : String(child);
}

/** Return an HTML element with attributes, listeners (function values) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, props, children);
  return element;
}

/** Return an SVG element. */
export function s(tag: string, props: Props = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, props, children);
  return element;
}

/** Replace everything inside an element. */
export function show(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  fill(element, {}, children);
}
