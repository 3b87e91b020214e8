/** Elements. Text is always text: nothing here, or anywhere in this page, parses markup. */

type Child = Node | string | null | false;
type Props = Record<string, string | boolean | ((event: Event) => void)>;

/** An element with attributes, listeners (`on…`) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  apply(element, props);
  for (const child of children) if (child !== null && child !== false) element.append(child);
  return element;
}

/** The same in a drawing. */
export function svg<K extends keyof SVGElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  apply(element, props);
  for (const child of children) if (child !== null && child !== false) element.append(child);
  return element;
}

function apply(element: Element, props: Props): void {
  for (const [key, value] of Object.entries(props)) {
    if (typeof value === 'function') element.addEventListener(key.slice(2), value);
    else if (typeof value === 'string') element.setAttribute(key, value);
    else if (value) element.setAttribute(key, '');
  }
}

/** An element that the page has. */
export function byId<T extends HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`no #${id}`);
  return element as T;
}

/** Sets a text only if it differs: otherwise a screen reader would read it again. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
