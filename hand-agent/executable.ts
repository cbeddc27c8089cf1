/** The hand agent's program where it is one file with Node in it: such files wait for nothing at their top level. */
import { runMain } from "../kit/program.ts";
import { startHandAgent } from "./start-hand-agent.ts";

void runMain("hand-agent", startHandAgent);
