/** The `tendon` command as a whole: its commands and global options. */
import { Command, CommanderError } from "commander";
import { BUILD } from "../kit/build.ts";
import { EXIT_USAGE } from "./command.ts";
import { addAgentCommands } from "./commands/agent.ts";
import { addAuditCommands } from "./commands/audit.ts";
import { addChatCommand } from "./commands/chat.ts";
import { addCredentialCommands } from "./commands/credential.ts";
import { addDeploymentCommands } from "./commands/deployment.ts";
import { addDoctorCommand } from "./commands/doctor.ts";
import { addEnvironmentCommands } from "./commands/environment.ts";
import { addFileCommands } from "./commands/file.ts";
import { addHandCommands } from "./commands/hand.ts";
import { addHandAgentCommands } from "./commands/hand-agent.ts";
import { addKeyCommands } from "./commands/key.ts";
import { addMemoryCommands } from "./commands/memory.ts";
import { addProgramCommands } from "./commands/programs.ts";
import { addSessionCommands } from "./commands/session.ts";
import { addSkillCommands } from "./commands/skill.ts";
import { addStartCommand } from "./commands/start.ts";
import { addVaultCommands } from "./commands/vault.ts";
import { addWebhookCommands } from "./commands/webhook.ts";
import { addWorkspaceCommands } from "./commands/workspace.ts";

const AFTER_HELP = `
The server is found by --url, TENDON_URL, or the one started on the data directory (else http://127.0.0.1:7400);
the key by TENDON_API_KEY or admin.key in the data directory.
Exit codes: 0 well, 1 failed, 2 wrong usage.

Examples:
  tendon start --once "run: uname -a"
  tendon chat
  tendon session create --message "run: date" --json
  tendon session watch sesn_01… --previews`;

export function createTendonCommand(): Command {
  const program = new Command("tendon")
    .description("Runs and talks to Tendon, a platform for long-running agents.")
    .version(BUILD)
    .option("--url <url>", "where the server is")
    .option("--data-dir <folder>", "data directory of an installation on this machine")
    .option("--ca-file <file>", "certificates (PEM) to trust instead of the system's")
    .option("--json", "one JSON object, or one a line for streams, with the names of the contract's fields")
    .option("--no-color", "no colours or other control sequences; also by NO_COLOR")
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .showHelpAfterError('(add "--help" to see what there is)')
    .addHelpText("after", AFTER_HELP);
  for (const add of [
    addStartCommand,
    addChatCommand,
    addDoctorCommand,
    addSessionCommands,
    addAgentCommands,
    addEnvironmentCommands,
    addDeploymentCommands,
    addMemoryCommands,
    addFileCommands,
    addSkillCommands,
    addHandCommands,
    addHandAgentCommands,
    addVaultCommands,
    addCredentialCommands,
    addWebhookCommands,
    addKeyCommands,
    addWorkspaceCommands,
    addAuditCommands,
    addProgramCommands,
  ]) {
    add(program);
  }
  throwInsteadOfExit(program);
  return program;
}

/** Resolves with the exit code. */
export async function runTendon(argv: readonly string[]): Promise<number> {
  try {
    await createTendonCommand().parseAsync([...argv], { from: "user" });
    return Number(process.exitCode ?? 0);
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    // What is wrong has been told; help and version that were asked for are no failure.
    return error.exitCode === 0 ? 0 : EXIT_USAGE;
  }
}

/** Subcommands do not take this over from their parents once they exist. */
function throwInsteadOfExit(command: Command): void {
  command.exitOverride();
  for (const sub of command.commands) throwInsteadOfExit(sub);
}
