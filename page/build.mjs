// Builds the browser side into the package: page.js, worker.js, page.css. The same sources give the same bytes.
import { build } from "esbuild";
import { mkdir, writeFile } from "node:fs/promises";

const target = process.argv[2] ?? "../src/stepscope/report/page/bundle";
const common = {
  bundle: true,
  minify: true,
  write: false,
  target: ["chrome110", "firefox115", "safari16.4"],
  format: "iife",
  legalComments: "none",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
};

const text = async (options) => (await build({ ...common, ...options })).outputFiles[0].text;

await mkdir(target, { recursive: true });
for (const [name, entry] of [["page.js", "src/main.tsx"], ["worker.js", "src/timeline/worker.ts"], ["page.css", "src/page.css"]]) {
  await writeFile(`${target}/${name}`, await text({ entryPoints: [entry] }));
}
