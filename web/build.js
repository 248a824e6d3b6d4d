// Builds the pages of src/pages in ../heed/assets: each one self-contained HTML file, and the lab,
// whose files are served, in a folder.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { build } from "vite";

const ROOT = dirname(fileURLToPath(import.meta.url));
const ASSETS = join(ROOT, "..", "heed", "assets");
const PAGES = ["map", "report"];

const LAB = join(ASSETS, "lab");
const MOST_KILOBYTES = 400; // of the lab, compressed

const packages = new Set();
for (const page of PAGES) {
  writeFileSync(join(ASSETS, `${page}.html`), inlined(await bundle(page)));
}
writeLab(await bundle("lab", "/static/"));
packages.delete(undefined);
writeFileSync(join(ASSETS, "LICENSES.txt"), licenses([...packages].sort()));

/** The files of a page; the lab's have names without a hash, so that they replace older ones. */
async function bundle(page, base = "/") {
  const { output } = await build({
    root: ROOT,
    base,
    configFile: false,
    logLevel: "warn",
    // The hash of a component's class names comes from its style, never from where it lies.
    plugins: [svelte({ compilerOptions: { cssHash: ({ hash, css }) => `s-${hash(css)}` } })],
    build: {
      write: false,
      target: "es2022",
      // The files that a room needs are asked for at once, not one after the other.
      modulePreload: base === "/" ? false : { polyfill: false },
      cssCodeSplit: false,
      assetsInlineLimit: Number.MAX_SAFE_INTEGER,
      rolldownOptions: {
        input: join(ROOT, `${page}.html`),
        checks: { bundlerTimings: false },
        output: {
          entryFileNames: `${page}.js`,
          chunkFileNames: "[name].js",
          assetFileNames: `${page}[extname]`,
        },
      },
    },
  });
  for (const chunk of output) {
    for (const id of chunk.moduleIds ?? []) packages.add(packageOf(id));
  }
  return output;
}

/** The folder of the lab: index.html, lab.js with a chunk for each room, lab.css. */
function writeLab(output) {
  rmSync(LAB, { recursive: true, force: true });
  mkdirSync(LAB);
  let bytes = 0;
  for (const file of output) {
    const content = file.type === "chunk" ? file.code : file.source;
    writeFileSync(join(LAB, file.fileName.replace("lab.html", "index.html")), content);
    bytes += gzipSync(content).length;
  }
  if (bytes > MOST_KILOBYTES * 1024) throw new Error(`the lab has ${bytes} bytes compressed`);
}

/** The page with its script and its style inside, so that it asks for no other file. */
function inlined(output) {
  const page = output.find((file) => file.fileName.endsWith(".html"));
  const chunks = output.filter((file) => file.type === "chunk");
  const styles = output.filter((file) => file.fileName.endsWith(".css"));
  if (chunks.length !== 1 || output.length !== 2 + styles.length) {
    throw new Error(`more files than can be inlined: ${output.map((file) => file.fileName)}`);
  }
  const script = chunks[0].code.trim().replaceAll("</script", "<\\/script");
  const style = styles.map((file) => String(file.source).trim()).join("\n");
  return String(page.source)
    .replace(/\s*<script type="module"[^>]*src="[^"]*"[^>]*><\/script>/, "")
    .replace(/\s*<link rel="stylesheet"[^>]*>/, "")
    .replace("</head>", () => `  <style>${style}</style>\n</head>`)
    .replace("</body>", () => `  <script type="module">${script}</script>\n</body>`);
}

/** The package that a bundled module belongs to. */
function packageOf(id) {
  return id.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1];
}

function licenses(names) {
  const parts = names.map((name) => {
    const folder = join(ROOT, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[sc]e/i.test(entry));
    if (!file) throw new Error(`${name} has no licence file`);
    return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  const head = "The pages in this folder contain code of these packages, under these licences.\n";
  return [head, ...parts].join(`\n${"-".repeat(78)}\n\n`);
}
