/** How the installation is, for people. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { GetStatusResponseSchema } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { missingParts } from "../ports/readiness.ts";
import type { Presence } from "../store/replicas.ts";

export interface StatusFacts {
  readonly build: string;
  readonly installationId: string;
  readonly databaseKind: "embedded" | "external";
}

export function createStatus(
  presence: Presence,
  { build, installationId, databaseKind }: StatusFacts,
): MessageInitShape<typeof GetStatusResponseSchema> {
  const problems = missingParts(presence);
  return {
    ready: problems.length === 0,
    problems,
    build,
    installationId,
    database: `${databaseKind}, Postgres ${presence.databaseVersion}`,
    harnesses: presence.harnesses,
    proxies: presence.proxies,
    handAgentsOnline: presence.handAgentsOnline,
    replicas: presence.replicas,
    isolation: presence.isolation,
  };
}
