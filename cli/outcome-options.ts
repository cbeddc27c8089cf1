/** What a session is to reach, as options of the commands that say so. */
import type { Command } from "commander";
import { StartupError } from "../kit/program.ts";
import type { EventInput } from "../proto/gen/tendon/v1/event_pb.js";
import { EXIT_USAGE } from "./command.ts";
import { readText } from "./read-file.ts";
import { defineOutcome } from "./user-events.ts";
import { parseCount } from "./words.ts";

export interface OutcomeOptions {
  outcome?: string;
  rubric?: string;
  rubricFile?: string;
  rubricId?: string;
  maxIterations?: number;
}

const MAX_ITERATIONS = 20;
const RUBRICS = "--rubric, --rubric-file or --rubric-id";

/** `where`: how it stands to the other texts of the command. */
export function addOutcomeOptions(command: Command, where: string): Command {
  return command
    .option(
      "--outcome <text>",
      `what the session is to reach: it works until a grader says that the rubric is met (${where})`,
    )
    .option("--rubric <text>", "with --outcome: what it is judged by, one criterion a line")
    .option("--rubric-file <file>", 'the same, from a file here; "-" is standard input')
    .option("--rubric-id <file>", "the same, from an uploaded file, by its id (file_…)")
    .option(
      "--max-iterations <n>",
      `with --outcome: how often the work is judged at most, 1 to ${MAX_ITERATIONS}; left out: 3`,
      parseCount(1, MAX_ITERATIONS),
    );
}

/** Undefined when no outcome is given. */
export function outcomeOf(options: OutcomeOptions): EventInput | undefined {
  const { outcome, rubric, rubricFile, rubricId, maxIterations } = options;
  const rubrics = [rubric, rubricFile, rubricId].filter((one) => one !== undefined);
  if (outcome === undefined) {
    if (rubrics.length === 0 && maxIterations === undefined) return undefined;
    throw new StartupError(`${RUBRICS} and --max-iterations go with --outcome`, EXIT_USAGE);
  }
  if (rubrics.length !== 1)
    throw new StartupError(`--outcome needs a rubric, and one alone: ${RUBRICS}`, EXIT_USAGE);
  const by =
    rubricId === undefined
      ? { type: "text" as const, content: rubric ?? readText(rubricFile!) }
      : { type: "file" as const, file_id: rubricId };
  return defineOutcome(outcome, by, maxIterations);
}
