/** The interactive parts of `heed report`; without this script their alternatives are shown. */

import "../page.css";
import "../report.css";
import "../report-content.css";
import { showParts } from "../lib/interactive";

showParts(document, JSON.parse(document.getElementById("heed-data")!.textContent!) ?? {});
