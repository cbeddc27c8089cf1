/** `tendon chat`: talk to an agent. */
import type { Command } from "commander";
import { runChat } from "../chat/chat.ts";
import { onAction } from "../command.ts";

export function addChatCommand(program: Command): void {
  const command = program
    .command("chat")
    .description("talk to an agent; Ctrl-C interrupts it, and again quits")
    .option("--session <session>", "go on with this one; left out: a new one")
    .option("--agent <agent>", 'agent of a new session; left out: the newest one named "default"')
    .option("--env <environment>", "environment of a new session; left out: the default environment")
    .addHelpText(
      "after",
      '\nLines from a pipe are sent one by one, each after the turn before it:\n  echo "run: uname -a" | tendon chat',
    );
  onAction<{ session?: string; agent?: string; env?: string }>(command, ({ options, api, output }) =>
    runChat({ api, output, sessionId: options.session, agentId: options.agent, environmentId: options.env }),
  );
}
