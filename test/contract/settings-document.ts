/** docs/settings.md, made from the programs' tables. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { settingsTable } from "../../kit/settings/print.ts";
import type { SettingsTable } from "../../kit/settings/settings.ts";
import { ROOT } from "../tidy/source-tree.ts";

export const DOCUMENT = join(ROOT, "docs/settings.md");

const PROGRAMS = [
  { folder: "server", command: "tendon server" },
  { folder: "harness", command: "tendon harness" },
  { folder: "hand-agent", command: "tendon hand-agent run" },
  { folder: "mcp-proxy", command: "tendon mcp-proxy" },
  { folder: "cli", command: "tendon, tendon start" },
];

const INTRODUCTION = `# Settings

Every program reads its settings from the environment once, at start, and tells all problems together. A \`TENDON_*\` name that no program knows is refused, so a typing error never passes in silence.
A secret may come from a file instead: \`NAME_FILE\` names it. \`--print-config\` shows what a program would use and where each value came from, without secrets.
\`npm start\` and \`tendon start\` take the settings of all programs and give each its own: \`TENDON_PROXY_UPSTREAM_CA_FILE=ca.pem npm start\`.

This page is generated: \`npm run docs:settings\`.`;

function isTable(value: unknown): value is SettingsTable {
  if (typeof value !== "object" || value === null) return false;
  const settings = Object.values(value);
  return (
    settings.length > 0 &&
    settings.every(
      (setting) => typeof setting === "object" && setting !== null && "parse" in setting && "help" in setting,
    )
  );
}

export async function renderSettings(): Promise<string> {
  const sections = await Promise.all(
    PROGRAMS.map(async ({ folder, command }) => {
      const module: Record<string, unknown> = await import(`../../${folder}/config.ts`);
      const tables = Object.values(module).filter(isTable);
      return `## ${command}\n\n${tables.map(settingsTable).join("\n").trim()}`;
    }),
  );
  return `${[INTRODUCTION, ...sections].join("\n\n")}\n`;
}

export function readDocument(): string {
  return readFileSync(DOCUMENT, "utf8");
}

export async function writeDocument(): Promise<void> {
  writeFileSync(DOCUMENT, await renderSettings());
}
