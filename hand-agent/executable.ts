/** The hand agent's program where it is one file with Node in it: such files wait for nothing at their top level. */
import { runMain } from "../kit/program.ts";
import { handAgentProgram } from "./hand-agent-program.ts";

void runMain("hand-agent", handAgentProgram);
