/** Shows settings to people: what a program runs with, and what it could be told. */
import type { Setting, SettingSource, Settings, SettingsTable } from "./settings.ts";

/** What `--print-config` prints: a line for each setting with its value and where it came from. Secrets are not shown. */
export function printConfig<T extends SettingsTable>(settings: Settings<T>): string {
  const lines = Object.entries(settings.table).map(([name, setting]) => {
    const source = settings.sources[name]!;
    const value = settings.values[name as keyof T];
    return `${name}=${shownValue(setting, value)}  # ${sourceText(name, source)}`;
  });
  return `${lines.join("\n")}\n`;
}

/** The settings as plain text, for `--help`: names on lines of their own, what they mean below, no wider than 100 columns. */
export function settingsHelp(table: SettingsTable): string {
  const entries = Object.entries(table).map(([name, setting]) => {
    const names = [name, ...(setting.aliases ?? []), ...(setting.secret ? [`${name}_FILE`] : [])].join(", ");
    const value = setting.required ? "must be set" : plainDefault(setting);
    const lines = wrapped(setting.help, HELP_WIDTH - HELP_INDENT.length).map((line) => HELP_INDENT + line);
    return [`  ${names}${value === "" ? "" : ` (${value})`}`, ...lines].join("\n");
  });
  return `Settings, as environment variables; <NAME>_FILE names a file that holds the value:\n\n${entries.join("\n")}\n`;
}

const HELP_WIDTH = 100;
const HELP_INDENT = "      ";

function plainDefault(setting: Setting): string {
  if (setting.default === undefined || setting.default === "") return "";
  return `default: ${setting.secret ? "[secret]" : valueText(setting.default)}`;
}

function wrapped(text: string, width: number): string[] {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const line = lines.at(-1)!;
    if (line === "") lines[lines.length - 1] = word;
    else if (line.length + 1 + word.length <= width) lines[lines.length - 1] = `${line} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** The settings as a Markdown table, for the documentation. */
export function settingsTable(table: SettingsTable): string {
  const rows = Object.entries(table).map(([name, setting]) => {
    const names = [name, ...(setting.aliases ?? []), ...(setting.secret ? [`${name}_FILE`] : [])];
    const shown = names.map((one) => `\`${one}\``).join("<br>");
    return `| ${shown} | ${defaultText(setting)} | ${setting.help.replaceAll("|", "\\|")} |`;
  });
  return `${["| name | default | meaning |", "|---|---|---|", ...rows].join("\n")}\n`;
}

function shownValue(setting: Setting, value: unknown): string {
  if (value === undefined) return "";
  if (setting.secret) return "[secret]";
  return valueText(value);
}

function valueText(value: unknown): string {
  return Array.isArray(value) ? value.map(String).join(",") : withoutPassword(String(value));
}

/** URLs may hold a password even where the setting is none. */
function withoutPassword(text: string): string {
  return text.replace(/^([a-z][a-z0-9+.-]*:\/\/[^/@:]*):[^@/]*@/i, "$1:[secret]@");
}

function sourceText(name: string, source: SettingSource): string {
  switch (source.kind) {
    case "default":
      return "default";
    case "unset":
      return "not set";
    case "environment":
      return source.name === name ? "environment" : `environment (${source.name})`;
    case "file":
      return `file ${source.path}`;
  }
}

function defaultText(setting: Setting): string {
  if (setting.required) return "must be set";
  if (setting.default === undefined || setting.default === "") return "";
  return setting.secret ? "[secret]" : `\`${valueText(setting.default)}\``;
}
