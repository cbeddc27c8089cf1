/** An echo service behind a real port, for the tests of kit's transport. */

import { type Listener, type ListenOptions, listen } from "../../kit/listen/listen.ts";
import { createLogger, type Logger } from "../../kit/log.ts";
import { HealthState } from "../../kit/rpc/health.ts";
import { mountConnect } from "../../kit/rpc/mount-connect.ts";
import { createGrpcServer, mountGrpc } from "../../kit/rpc/mount-grpc.ts";
import type { RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { reflectionServices } from "../../kit/rpc/reflection.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { validationInterceptor } from "../../kit/rpc/validation.ts";
import { Health } from "../../proto/gen/grpc/health/v1/health_pb.js";
import { EchoRecorder } from "./echo-service.ts";
import { EchoService } from "./proto/echo_pb.ts";

export interface EchoServer {
  listener: Listener;
  recorder: EchoRecorder;
  health: HealthState;
}

export async function startEchoServer(
  options: Partial<ListenOptions> & { interceptors?: RpcInterceptor[]; log?: Logger } = {},
): Promise<EchoServer> {
  const log = options.log ?? createLogger("test", "silent");
  const recorder = new EchoRecorder();
  const health = new HealthState([EchoService.typeName]);
  const services = [
    bindService(EchoService, recorder.implementation()),
    health.bind(),
    ...reflectionServices([EchoService, Health]),
  ];
  const interceptors = options.interceptors ?? [validationInterceptor()];
  const grpcServer = createGrpcServer();
  mountGrpc(grpcServer, services, { interceptors, log });
  const httpHandler = mountConnect(services, {
    interceptors,
    log,
    fallback: (request, response) => {
      const answer = { url: request.url, version: request.httpVersion };
      (response as import("node:http").ServerResponse)
        .writeHead(200, { "content-type": "application/json" })
        .end(JSON.stringify(answer));
    },
  });
  const listener = await listen({
    host: "127.0.0.1",
    port: 0,
    h2c: "auto",
    grpcServer,
    httpHandler,
    log,
    ...options,
  });
  return { listener, recorder, health };
}
