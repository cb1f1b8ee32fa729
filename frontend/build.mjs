// Builds the committed assets: the same sources give the same bytes, on any machine.
//   node build.mjs             into the package
//   node build.mjs --out DIR   elsewhere, to compare
//   node build.mjs --test      the pure modules and their tests, for node's own test runner
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import path from "node:path";

const here = path.dirname(fileURLToPath(import.meta.url));
const flag = process.argv.indexOf("--out");
const out = flag > 0 ? process.argv[flag + 1] : path.join(here, "../src/orderlens/show/report/assets");
const common = {
  bundle: true,
  charset: "utf8",
  legalComments: "none",
  absWorkingDir: here,
  logLevel: "warning",
};

if (process.argv.includes("--test")) {
  await build({
    ...common,
    entryPoints: ["test/all.test.ts"],
    outdir: ".test",
    format: "esm",
    platform: "node",
    outExtension: { ".js": ".mjs" },
  });
} else {
  await build({
    ...common,
    entryPoints: ["src/report.ts", "src/viewer.ts"],
    outdir: out,
    format: "iife",
    target: ["es2022"],
    minify: true,
  });
  await build({ ...common, entryPoints: ["src/page.css"], outdir: out, minify: true });
}
