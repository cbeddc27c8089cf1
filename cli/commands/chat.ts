/** `tendon chat`: talk to an agent. */
import type { Command } from "commander";
import { runChat } from "../chat/chat.ts";
import { onAction } from "../command.ts";
import { agentIdOf, environmentIdOf } from "../named.ts";

export function addChatCommand(program: Command): void {
  const command = program
    .command("chat")
    .description("talk to an agent; Ctrl-C interrupts it, and twice at the prompt quits")
    .option("--session <session>", "go on with this one; left out: a new one")
    .option(
      "--agent <agent>",
      'agent of a new session, by id or name; left out: the newest one named "default"',
    )
    .option(
      "--env <environment>",
      "environment of a new session, by id or name; left out: the default environment",
    )
    .addHelpText(
      "after",
      '\nLines from a pipe are sent one by one, each after the turn before it:\n  echo "run: uname -a" | tendon chat',
    );
  type Options = { session?: string; agent?: string; env?: string };
  onAction<Options>(command, async ({ options, api, output }) => {
    const { session, agent, env } = options;
    const agentId = agent === undefined ? undefined : await agentIdOf(api.agents, agent);
    const environmentId = env === undefined ? undefined : await environmentIdOf(api.environments, env);
    return runChat({ api, output, sessionId: session, agentId, environmentId });
  });
}
