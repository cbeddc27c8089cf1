/** The hand agent's program. */
import { runMain } from "../kit/program.ts";
import { handAgentProgram } from "./hand-agent-program.ts";

await runMain("hand-agent", handAgentProgram);
