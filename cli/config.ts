/** The command line's settings, read once; options given to a command win over them. */
import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { port, text, url } from "../kit/settings/parsers.ts";
import { defineSettings, readSettings, type SettingValues } from "../kit/settings/settings.ts";
import { dialSettings } from "../kit/settings/shared-settings.ts";

export const cliSettings = defineSettings({
  TENDON_URL: {
    parse: url(["http", "https"]),
    help: "Where the server is. Not set: the one that was started on the data directory, else http://127.0.0.1:7400.",
  },
  TENDON_API_KEY: {
    parse: text(),
    secret: true,
    help: "The caller's key. Not set: admin.key in the data directory.",
  },
  TENDON_DATA_DIR: {
    parse: text(),
    help: "Folder of keys, logs and the embedded Postgres of an installation started here. Not set: .tendon.",
  },
  TENDON_HOST: {
    parse: text({ maxChars: 255 }),
    default: "127.0.0.1",
    help: "Address that `tendon start` listens on.",
  },
  TENDON_PORT: {
    parse: port(),
    default: 7400,
    help: "Port that `tendon start` listens on; 0 takes a free one.",
  },
  TENDON_TLS_CERT: { parse: text(), help: "Certificate chain (PEM file) of a server started here." },
  TENDON_TLS_CLIENT_CA: { parse: text(), help: "Certificates that sign clients' certificates (PEM file)." },
  TENDON_ADMIN_KEY: {
    parse: text(),
    secret: true,
    help: "An admin key of your own for a server started here, instead of the one in admin.key.",
  },
  TENDON_MODEL: { parse: text(), help: "Model of agents that name none." },
  NO_COLOR: { parse: text(), help: "Any value: no colours and no other control sequences on a terminal." },
  ...dialSettings,
});

export type CliConfig = SettingValues<typeof cliSettings>;

export type Environment = Readonly<Record<string, string | undefined>>;

/** Throws a SettingsError with every problem. */
export function readConfig(): CliConfig {
  return readSettings(cliSettings, process.env, { knownElsewhere: KNOWN_NAMES }).values;
}

/** The variables that this program was started with, for those that it starts. */
export function inheritedEnvironment(): Environment {
  return { ...process.env };
}

/** For a program that goes on in this process: its settings that were given as options. */
export function overrideSettings(values: Environment): void {
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined) process.env[name] = value;
  }
}
