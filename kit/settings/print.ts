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
