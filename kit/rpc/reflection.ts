/** The standard server reflection service, v1 and v1alpha, answered from the generated descriptors. */
import {
  createRegistry,
  type DescFile,
  type DescService,
  type MessageInitShape,
  type Registry,
  toBinary,
} from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { status } from "@grpc/grpc-js";
import {
  ServerReflection,
  type ServerReflectionRequest,
  type ServerReflectionResponseSchema,
} from "../../proto/gen/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "../../proto/gen/grpc/reflection/v1alpha/reflection_pb.js";
import { type BoundService, bindService } from "./service.ts";

/** Both versions' questions and answers, which differ in nothing but their packages. */
type Question = ServerReflectionRequest["messageRequest"];
type Answer = NonNullable<MessageInitShape<typeof ServerReflectionResponseSchema>["messageResponse"]>;

/** The services to mount, which list `services` and themselves. */
export function reflectionServices(services: readonly DescService[]): BoundService[] {
  const listed = [...services, ServerReflection, ServerReflectionAlpha];
  const reflection = new Reflection(listed);
  async function* answers(requests: AsyncIterable<ServerReflectionRequest>) {
    for await (const request of requests) {
      const messageResponse = reflection.answer(request.messageRequest);
      yield { validHost: request.host, originalRequest: request, messageResponse };
    }
  }
  async function* alphaAnswers(requests: AsyncIterable<unknown>): AsyncGenerator<never> {
    const typed = requests as AsyncIterable<ServerReflectionRequest>;
    for await (const { messageResponse, validHost } of answers(typed)) {
      yield { validHost, messageResponse } as never;
    }
  }
  return [
    bindService(ServerReflection, { serverReflectionInfo: answers }),
    bindService(ServerReflectionAlpha, { serverReflectionInfo: alphaAnswers }),
  ];
}

class Reflection {
  private readonly registry: Registry;
  private readonly files = new Map<string, DescFile>();
  private readonly names: string[];

  constructor(services: readonly DescService[]) {
    const add = (file: DescFile) => {
      if (this.files.has(file.proto.name)) return;
      file.dependencies.forEach(add);
      this.files.set(file.proto.name, file);
    };
    for (const service of services) add(service.file);
    this.registry = createRegistry(...this.files.values());
    this.names = services.map(({ typeName }) => typeName);
  }

  answer(question: Question): Answer {
    switch (question.case) {
      case "listServices":
        return { case: "listServicesResponse", value: { service: this.names.map((name) => ({ name })) } };
      case "fileByFilename":
        return this.fileAnswer(this.files.get(question.value), question.value);
      case "fileContainingSymbol":
        return this.fileAnswer(this.fileOf(question.value), question.value);
      case "fileContainingExtension": {
        const { containingType, extensionNumber } = question.value;
        const found = this.extensionsOf(containingType).find(({ number }) => number === extensionNumber);
        return this.fileAnswer(found?.file, `${containingType} ${extensionNumber}`);
      }
      case "allExtensionNumbersOfType": {
        if (this.registry.getMessage(question.value) === undefined) return unknown(question.value);
        const extensionNumber = this.extensionsOf(question.value).map(({ number }) => number);
        const value = { baseTypeName: question.value, extensionNumber };
        return { case: "allExtensionNumbersResponse", value };
      }
      default:
        return errorAnswer(status.INVALID_ARGUMENT, "the request asks nothing");
    }
  }

  /** A symbol is a type, a service, an extension, or a member of one: a method, a field, an enum value. */
  private fileOf(symbol: string): DescFile | undefined {
    const parent = symbol.slice(0, Math.max(0, symbol.lastIndexOf(".")));
    const member = symbol.slice(parent.length + 1);
    const found = this.registry.get(symbol);
    if (found !== undefined) return "file" in found ? found.file : undefined;
    const owner = this.registry.get(parent);
    if (owner?.kind === "service" && owner.methods.some(({ name }) => name === member)) return owner.file;
    if (owner?.kind === "message" && owner.members.some(({ name }) => name === member)) return owner.file;
    if (owner?.kind === "enum" && owner.values.some(({ name }) => name === member)) return owner.file;
    return undefined;
  }

  private extensionsOf(typeName: string) {
    return [...this.registry].flatMap((desc) =>
      desc.kind === "extension" && desc.extendee.typeName === typeName ? [desc] : [],
    );
  }

  /** The file and all it imports, imports first, so that a client needs to ask once. */
  private fileAnswer(file: DescFile | undefined, name: string): Answer {
    if (file === undefined) return unknown(name);
    const ordered = new Map<string, Uint8Array>();
    const add = (next: DescFile) => {
      if (ordered.has(next.proto.name)) return;
      next.dependencies.forEach(add);
      ordered.set(next.proto.name, toBinary(FileDescriptorProtoSchema, next.proto));
    };
    add(file);
    return {
      case: "fileDescriptorResponse",
      value: { fileDescriptorProto: [...ordered.values()].reverse() },
    };
  }
}

function unknown(name: string): Answer {
  return errorAnswer(status.NOT_FOUND, `nothing here is called "${name}"`);
}

function errorAnswer(errorCode: status, errorMessage: string): Answer {
  return { case: "errorResponse", value: { errorCode, errorMessage } };
}
