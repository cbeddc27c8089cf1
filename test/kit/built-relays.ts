/** Relays of hands, whose listeners are the built hand agent: the test's own program is none. */
import { fileURLToPath } from "node:url";
import { AgentRelays } from "../../hand-agent/relay/agent-relays.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";

const HAND_AGENT = fileURLToPath(new URL("../../dist/hand-agent.mjs", import.meta.url));

export function builtRelays(): AgentRelays {
  return new AgentRelays({
    proxy: {},
    ownProgram: (args) => ({ file: process.execPath, args: [HAND_AGENT, ...args] }),
    clock: systemClock,
    log: createLogger("test", "silent"),
  });
}
