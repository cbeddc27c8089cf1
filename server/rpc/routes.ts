/** Mounts everything on both wires; what nobody implements yet says so. */
import type { DescService } from "@bufbuild/protobuf";
import type { Server as GrpcServer } from "@grpc/grpc-js";
import { TendonError } from "../../kit/errors.ts";
import type { HealthState } from "../../kit/rpc/health.ts";
import { type HttpHandler, mountConnect } from "../../kit/rpc/mount-connect.ts";
import { createGrpcServer, type MountOptions, mountGrpc } from "../../kit/rpc/mount-grpc.ts";
import { reflectionServices } from "../../kit/rpc/reflection.ts";
import {
  type BoundService,
  methodPath,
  streamsResponses,
  type UntypedMethod,
} from "../../kit/rpc/service.ts";
import { Health } from "../../proto/gen/grpc/health/v1/health_pb.js";
import { assertCovered, CONTRACT_SERVICES } from "./policy.ts";

export interface Routes {
  readonly grpcServer: GrpcServer;
  readonly httpHandler: HttpHandler;
}

export interface RoutesOptions extends MountOptions {
  readonly services: readonly BoundService[];
  readonly health: HealthState;
  /** Answers every HTTP request that is no call of the contract. */
  readonly fallback: HttpHandler;
}

/** Throws when two parts bring the same service, or when the policy has no row for a method. */
export function createRoutes({ services, health, fallback, ...options }: RoutesOptions): Routes {
  const built = new Set(services.map(({ service }) => service.typeName));
  if (built.size < services.length) throw new Error("a service is implemented twice");
  const missing = CONTRACT_SERVICES.filter(({ typeName }) => !built.has(typeName));
  const mounted = [
    ...services,
    ...missing.map(notBuilt),
    health.bind(),
    ...reflectionServices([...CONTRACT_SERVICES, Health]),
  ];
  assertCovered(mounted.map(({ service }) => service));
  const grpcServer = createGrpcServer();
  mountGrpc(grpcServer, mounted, options);
  return { grpcServer, httpHandler: mountConnect(mounted, { ...options, fallback }) };
}

/** Every method passes the same gate as a built one, so that callers learn the same about their rights. */
function notBuilt(service: DescService): BoundService {
  const methods = new Map<string, UntypedMethod>();
  for (const method of service.methods) {
    const refuse = () =>
      new TendonError("NOT_IMPLEMENTED", `${methodPath(method)} is not part of this build of the server`);
    methods.set(
      method.localName,
      streamsResponses(method)
        ? // biome-ignore lint/correctness/useYield: it has nothing to answer
          async function* () {
            throw refuse();
          }
        : async () => {
            throw refuse();
          },
    );
  }
  return { service, methods };
}
