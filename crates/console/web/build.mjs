// Bundles src/ into ../assets/dist, or into the folder that is named. The bytes depend on src/ and package-lock.json only.
import { build } from "esbuild";
import { copyFile, readFile, readdir, writeFile } from "node:fs/promises";

const outdir = process.argv[2] ?? "../assets/dist";
const { metafile } = await build({
  entryPoints: ["src/app.ts", "src/charts.ts", "src/editor.ts", "src/app.css"],
  outdir,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome109", "firefox115", "safari16"],
  charset: "utf8",
  legalComments: "inline",
  logLevel: "warning",
  metafile: true,
});
await copyFile("src/icon.svg", `${outdir}/icon.svg`);

// The licences of what is in the bundle, which its licences want to go with it.
const packages = new Set();
for (const input of Object.keys(metafile.inputs)) {
  const found = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/);
  if (found) packages.add(found[1]);
}
let licences = "";
for (const name of [...packages].sort()) {
  const folder = `node_modules/${name}`;
  const { version } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
  const file = (await readdir(folder)).sort().find((file) => /^licen[cs]e/i.test(file));
  if (!file) throw new Error(`${name} has no file with its licence`);
  licences += `${name} ${version}\n\n${(await readFile(`${folder}/${file}`, "utf8")).trim()}\n\n\n`;
}
await writeFile(`${outdir}/licences.txt`, licences);
