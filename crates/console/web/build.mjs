// Bundles src/ into ../assets/dist, or into the folder that is named. The bytes depend on src/ and package-lock.json only.
import { build } from "esbuild";
import { copyFile } from "node:fs/promises";

const outdir = process.argv[2] ?? "../assets/dist";
await build({
  entryPoints: ["src/app.ts", "src/charts.ts", "src/editor.ts", "src/app.css"],
  outdir,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome109", "firefox115", "safari16"],
  charset: "utf8",
  legalComments: "inline",
  logLevel: "warning",
});
await copyFile("src/icon.svg", `${outdir}/icon.svg`);
