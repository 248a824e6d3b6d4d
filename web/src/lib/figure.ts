/** A figure on screen as one SVG file: text stays text, canvases become images. */

export interface Figure {
  text: string;
  width: number;
  height: number;
}

const SVG = "http://www.w3.org/2000/svg";
/** Styles that an SVG's elements have from the page, and need in a file of their own. */
const SVG_STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-opacity",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "letter-spacing",
  "display",
  "visibility",
  "paint-order",
  "mix-blend-mode",
];
const SCALE = 2; // pixels of a PNG for each of the screen

/** Draw an element and all that is visible in it. */
export function drawFigure(root: Element): Figure {
  const box = root.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
  const drawing = new Drawing(box);
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("xmlns", SVG);
  picture.setAttribute("width", String(width));
  picture.setAttribute("height", String(height));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ground = document.createElementNS(SVG, "rect");
  ground.setAttribute("width", String(width));
  ground.setAttribute("height", String(height));
  ground.setAttribute("fill", backgroundOf(root));
  picture.append(ground, ...drawing.draw(root));
  return { text: new XMLSerializer().serializeToString(picture), width, height };
}

/** The pixels of a figure as PNG. */
export async function rasterize(figure: Figure): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(figure.text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = figure.width * SCALE;
  canvas.height = figure.height * SCALE;
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The figure is too large."))), "image/png"),
  );
}

class Drawing {
  constructor(private origin: DOMRect) {}

  /** The SVG elements of an element and its descendants, in the order in which they are painted. */
  draw(element: Element): SVGElement[] {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden" || element.classList.contains("unseen")) return [];
    if (element.classList.contains("no-print")) return []; // its controls
    if (element instanceof SVGSVGElement) return [this.copySvg(element)];
    const box = element.getBoundingClientRect();
    if (element instanceof HTMLCanvasElement) {
      return box.width && element.width ? [this.at(imageOf(element.toDataURL(), box), box)] : [];
    }
    const parts = this.drawBox(box, style);
    for (const child of element.childNodes) {
      if (child instanceof Element) parts.push(...this.draw(child));
      else if (child instanceof Text && child.data.trim()) parts.push(...this.drawText(child, style));
    }
    if (style.overflow !== "visible" && parts.length && isCut(element)) return [this.clip(parts, box)];
    return parts;
  }

  /** The background and the borders of an HTML element. */
  private drawBox(box: DOMRect, style: CSSStyleDeclaration): SVGElement[] {
    const parts: SVGElement[] = [];
    const ramp = style.backgroundImage.startsWith("linear-gradient") ? gradientOf(style.backgroundImage) : null;
    if ((ramp || !isTransparent(style.backgroundColor)) && box.width && box.height) {
      const rect = this.at(document.createElementNS(SVG, "rect"), box);
      rect.setAttribute("fill", ramp ? `url(#${ramp.id})` : style.backgroundColor);
      const radius = parseFloat(style.borderTopLeftRadius);
      if (radius) rect.setAttribute("rx", String(radius));
      parts.push(...(ramp ? [ramp] : []), rect);
    }
    const sides = [
      ["Top", box.left, box.top, box.right, box.top],
      ["Right", box.right, box.top, box.right, box.bottom],
      ["Bottom", box.left, box.bottom, box.right, box.bottom],
      ["Left", box.left, box.top, box.left, box.bottom],
    ] as const;
    for (const [side, x1, y1, x2, y2] of sides) {
      const width = parseFloat(style[`border${side}Width`]);
      const color = style[`border${side}Color`];
      if (!width || style[`border${side}Style`] === "none" || isTransparent(color)) continue;
      const line = document.createElementNS(SVG, "line");
      const ends = { x1: x1 - this.origin.left, y1: y1 - this.origin.top, x2: x2 - this.origin.left, y2: y2 - this.origin.top };
      for (const [name, value] of Object.entries(ends)) line.setAttribute(name, String(value));
      line.setAttribute("stroke", color);
      line.setAttribute("stroke-width", String(width));
      parts.push(line);
    }
    return parts;
  }

  /** A text node, one SVG text for each of its lines; vertical lines are rotated. */
  private drawText(node: Text, style: CSSStyleDeclaration): SVGElement[] {
    const lines: { text: string; first: DOMRect; last: DOMRect }[] = [];
    const boxes = characterBoxes(node);
    const isVertical = areVertical(boxes, parseFloat(style.fontSize));
    for (let at = 0; at < node.length; at++) {
      const box = boxes[at];
      if (!box) continue;
      const line = lines.at(-1);
      const shift = line && (isVertical ? line.last.left - box.left : line.last.top - box.top);
      if (line && Math.abs(shift!) < 2) Object.assign(line, { text: line.text + node.data[at], last: box });
      else lines.push({ text: node.data[at], first: box, last: box });
    }
    return lines
      .filter((line) => line.text.trim())
      .map(({ text, first, last }) => {
        const element = document.createElementNS(SVG, "text");
        const middle = parseFloat(style.fontSize) * 0.35; // from the middle of a line to its baseline
        let [x, y, angle] = [first.left, first.top + first.height / 2 + middle, 0];
        if (isVertical) {
          const center = first.left + first.width / 2;
          const isUpward = last.top <= first.top;
          [x, y, angle] = isUpward
            ? [center + middle, first.bottom, -90]
            : [center - middle, first.top, 90];
        }
        const [left, top] = [x - this.origin.left, y - this.origin.top];
        element.setAttribute("x", String(left));
        element.setAttribute("y", String(top));
        if (angle) element.setAttribute("transform", `rotate(${angle} ${left} ${top})`);
        element.setAttribute("fill", style.color);
        element.setAttribute("font-family", style.fontFamily);
        element.setAttribute("font-size", style.fontSize);
        element.setAttribute("font-weight", style.fontWeight);
        element.setAttribute("font-style", style.fontStyle);
        element.setAttribute("xml:space", "preserve");
        element.textContent = text;
        return element;
      });
  }

  /** An SVG inside the figure, with the styles that it has from the page. */
  private copySvg(source: SVGSVGElement): SVGElement {
    const copy = source.cloneNode(true) as SVGSVGElement;
    const originals = [source, ...source.querySelectorAll("*")];
    const copies = [copy, ...copy.querySelectorAll("*")];
    originals.forEach((original, index) => {
      const style = getComputedStyle(original);
      const target = copies[index];
      for (const name of SVG_STYLES) {
        const value = style.getPropertyValue(name);
        if (value) target.setAttribute(name, value);
      }
      target.removeAttribute("style");
      target.removeAttribute("class");
    });
    const box = source.getBoundingClientRect();
    copy.setAttribute("width", String(box.width));
    copy.setAttribute("height", String(box.height));
    copy.setAttribute("overflow", getComputedStyle(source).overflow);
    if (!source.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    return this.at(copy, box, { sized: false });
  }

  private clip(parts: SVGElement[], box: DOMRect): SVGElement {
    const frame = document.createElementNS(SVG, "svg");
    const [left, top] = [box.left - this.origin.left, box.top - this.origin.top];
    frame.setAttribute("viewBox", `${left} ${top} ${box.width} ${box.height}`);
    frame.append(...parts);
    return this.at(frame, box);
  }

  private at<E extends SVGElement>(element: E, box: DOMRect, { sized = true } = {}): E {
    element.setAttribute("x", String(box.left - this.origin.left));
    element.setAttribute("y", String(box.top - this.origin.top));
    if (sized) {
      element.setAttribute("width", String(box.width));
      element.setAttribute("height", String(box.height));
    }
    return element;
  }
}

function imageOf(address: string, box: DOMRect): SVGImageElement {
  const image = document.createElementNS(SVG, "image");
  image.setAttribute("href", address);
  image.setAttribute("preserveAspectRatio", "none");
  image.setAttribute("width", String(box.width));
  image.setAttribute("height", String(box.height));
  return image;
}

/** Where each character of a text is on screen; null for one that is not drawn. */
function characterBoxes(node: Text): (DOMRect | null)[] {
  const range = document.createRange();
  return Array.from({ length: node.length }, (_, at) => {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const box = range.getClientRects()[0];
    return box && (box.width || box.height) ? box : null;
  });
}

/** Whether characters stand above each other, closer than lines do: a text that is rotated. */
function areVertical(boxes: (DOMRect | null)[], size: number): boolean {
  const [first, second] = boxes.filter((box) => box !== null);
  if (!first) return false;
  if (!second) return first.width > 1.15 * size && first.height < size; // as wide as a line is high
  const [across, down] = [Math.abs(second.left - first.left), Math.abs(second.top - first.top)];
  return across < 1 && down > 0 && down < 1.15 * size;
}

let gradients = 0;

/** A horizontal CSS gradient with even stops as an SVG one. */
function gradientOf(css: string): SVGLinearGradientElement {
  const gradient = document.createElementNS(SVG, "linearGradient");
  gradient.id = `ramp-${++gradients}`;
  const colors = css.match(/rgba?\([^)]*\)/g) ?? [];
  colors.forEach((color, index) => {
    const stop = document.createElementNS(SVG, "stop");
    stop.setAttribute("offset", String(index / Math.max(1, colors.length - 1)));
    stop.setAttribute("stop-color", color);
    gradient.append(stop);
  });
  return gradient;
}

function isTransparent(color: string): boolean {
  return color === "transparent" || /[,/]\s*0\)$/.test(color);
}

/** Whether some of an element's content is scrolled or cut off. */
function isCut(element: Element): boolean {
  return element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1;
}

/** The color behind an element. */
function backgroundOf(element: Element): string {
  for (let at: Element | null = element; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (!isTransparent(color)) return color;
  }
  return "white";
}
