/** The hand agent's program. */
import { runMain } from "../kit/program.ts";
import { startHandAgent } from "./start-hand-agent.ts";

await runMain("hand-agent", startHandAgent);
