/** The page of `heed attend --out map.html`. */

import { mount } from "svelte";
import "../page.css";
import { readMaps } from "../lib/attention";
import AttentionPage from "./AttentionPage.svelte";

const page = document.getElementById("page")!;
try {
  const maps = readMaps(JSON.parse(document.getElementById("heed-data")!.textContent!));
  mount(AttentionPage, { target: page, props: { maps } });
} catch (error) {
  page.textContent = error instanceof Error ? error.message : String(error);
  page.style.padding = "2rem";
}
