// Makes dist/ from src/, or compares the two (--check).
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "esbuild";

const SHARED = { format: "esm", target: "es2022", platform: "neutral", logLevel: "warning" };
const LICENSE = "node_modules/eventsource-parser/LICENSE";

const BANNER = "// legato-client, Apache-2.0. Holds eventsource-parser, see eventsource-parser.LICENSE";
/** One entry finds another beside it. */
const beside = {
  name: "beside",
  setup: ({ onResolve }) => onResolve({ filter: /^\.\/(legato-client|session)\.ts$/ }, ({ path, kind }) =>
    kind === "entry-point" ? undefined : { path: path.replace(".ts", ".js"), external: true }),
};

async function bundle(outdir) {
  const own = { ...SHARED, bundle: true, minify: true, outdir };
  await build({ ...own, entryPoints: ["src/legato-client.ts"], mainFields: ["module"], banner: { js: BANNER } });
  await build({ ...own, entryPoints: ["src/session.ts", "src/react.ts"], external: ["react"], plugins: [beside] });
  const types = ["--noEmit", "false", "--declaration", "--emitDeclarationOnly", "--stripInternal", "--rootDir", "src"];
  execFileSync("node_modules/.bin/tsc", ["-p", "tsconfig.build.json", ...types, "--outDir", outdir], { stdio: "inherit" });
  copyFileSync(LICENSE, join(outdir, "eventsource-parser.LICENSE"));
}

function differing(made, kept) {
  const names = new Set([...readdirSync(made), ...readdirSync(kept)]);
  const text = (directory, name) => existsSync(join(directory, name)) && readFileSync(join(directory, name), "utf8");
  return [...names].filter((name) => text(made, name) !== text(kept, name));
}

async function check() {
  const made = mkdtempSync(join(tmpdir(), "legato-client-"));
  await bundle(made);
  const names = differing(made, "dist");
  rmSync(made, { recursive: true });
  if (names.length) throw new Error(`dist/ is not what src/ makes, run \`npm run build\`: ${names.join(", ")}`);
}

if (process.argv.includes("--check")) await check();
else {
  rmSync("dist", { recursive: true, force: true });
  await bundle("dist");
}
