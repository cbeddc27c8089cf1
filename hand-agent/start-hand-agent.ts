/** Which program this start is: the agent, or its brief stay in a hand's network. */
import { LISTEN_COMMAND, listenInside } from "./relay/listen-inside.ts";

/** Gives the exit code. The agent is loaded only where it is needed: a hand waits for the other. */
export async function startHandAgent(): Promise<number> {
  const [command, port] = process.argv.slice(2);
  if (command === LISTEN_COMMAND) return listenInside(Number(port));
  const { handAgentProgram } = await import("./hand-agent-program.ts");
  return handAgentProgram();
}
