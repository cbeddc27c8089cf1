/** `/v1/sessions/{session_id}/resources`. */
import { SessionResourceService } from "../../../../proto/gen/tendon/v1/session_resource_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { resourceInput } from "./resource-input.ts";
import { resourceJson } from "./resource-json.ts";

const { method } = SessionResourceService;

export function resourceRoutes(): ApiRoute[] {
  const all = "/v1/sessions/{session_id}/resources";
  const path = `${all}/{resource_id}`;
  const one = ({ params }: ApiCall) => ({ sessionId: params.session_id!, resourceId: params.resource_id! });
  return [
    route("POST", all, async ({ services, params, body, requestId }) => {
      const resource = resourceInput(body.fields);
      const request = { requestId, sessionId: params.session_id!, resource };
      return resourceJson((await services.call(method.createSessionResource, request)).resource!);
    }),
    // A session has few: there is one page.
    route("GET", all, async ({ services, params }) => {
      const request = { sessionId: params.session_id! };
      const { resources } = await services.call(method.listSessionResources, request);
      return { data: resources.map(resourceJson), next_page: null };
    }),
    route("GET", path, async (call) =>
      resourceJson((await call.services.call(method.getSessionResource, one(call))).resource!),
    ),
    route("POST", path, async (call) => {
      const { fields } = call.body;
      fields.only("authorization_token", "tendon");
      const extension = fields.object("tendon");
      extension?.only("user_name");
      const authorizationToken = fields.requiredText("authorization_token");
      const request = { ...one(call), authorizationToken, userName: extension?.text("user_name") ?? "" };
      return resourceJson((await call.services.call(method.updateSessionResource, request)).resource!);
    }),
    route("DELETE", path, async (call) => {
      await call.services.call(method.deleteSessionResource, one(call));
      return { id: call.params.resource_id, type: "session_resource_deleted" };
    }),
  ];
}
