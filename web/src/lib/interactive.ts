/** Interactive parts of a report, put in their places: without this their alternatives are shown. */

import { mount } from "svelte";
import AttentionView from "../components/AttentionView.svelte";
import ParallelCoordinates from "../components/ParallelCoordinates.svelte";
import { readMaps } from "./attention";
import { readParallel } from "./parallel";

export interface Part {
  component: string;
  data: unknown;
  label: string;
}

type Mounted = Record<string, unknown>;

const MOUNTS: Record<string, (target: Element, part: Part) => Mounted> = {
  "attention-map": (target, { data }) =>
    mount(AttentionView, { target, props: { maps: readMaps(data), headingLevel: 3 } }),
  "parallel-coordinates": (target, { data, label }) =>
    mount(ParallelCoordinates, { target, props: { data: readParallel(data), label } }),
};

/** Show every part that is below an element and not there yet; returns what was mounted. */
export function showParts(root: ParentNode, parts: Record<string, Part>): Map<Element, Mounted> {
  const mounted = new Map<Element, Mounted>();
  for (const target of root.querySelectorAll(":not(.is-ready) > [data-interactive]")) {
    const part = parts[target.getAttribute("data-interactive")!];
    if (!part) continue;
    mounted.set(target, MOUNTS[part.component](target, part));
    target.parentElement!.classList.add("is-ready");
  }
  return mounted;
}
