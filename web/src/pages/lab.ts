/** The page of `heed lab`. */

import { mount } from "svelte";
import "../page.css";
import "../lab/lab.css";
import Lab from "../lab/Lab.svelte";

mount(Lab, { target: document.getElementById("lab")! });
