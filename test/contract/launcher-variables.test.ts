import { expect, test } from "vitest";
import { PROGRAM_VARIABLES } from "../../cli/start/programs.ts";
import { handAgentSettings } from "../../hand-agent/config.ts";
import { harnessSettings } from "../../harness/config.ts";
import type { SettingsTable } from "../../kit/settings/settings.ts";
import { proxySettings } from "../../mcp-proxy/config.ts";
import { serverSettings } from "../../server/config.ts";

const TABLES: Record<keyof typeof PROGRAM_VARIABLES, SettingsTable> = {
  server: serverSettings,
  harness: harnessSettings,
  "mcp-proxy": proxySettings,
  "hand-agent": handAgentSettings,
};

test.each(Object.entries(TABLES))(
  "the launcher gives %s every setting of its table and no other",
  (name, table) => {
    const { plain, secret } = PROGRAM_VARIABLES[name as keyof typeof TABLES];
    const names = (isSecret: boolean) =>
      Object.entries(table)
        .filter(([, setting]) => (setting.secret === true) === isSecret)
        .flatMap(([setting, { aliases = [] }]) => [setting, ...aliases]);
    expect([...plain].toSorted()).toEqual(names(false).toSorted());
    expect([...secret].toSorted()).toEqual(names(true).toSorted());
  },
);
