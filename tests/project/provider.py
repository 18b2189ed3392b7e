"""What an identity provider on django-oauth-toolkit adds to the ID tokens: see tests/oauth/test_jwt_verifier.py."""

from typing import Any

from mcp_serving.oauth.provider.validator import Validator


class NamingValidator(Validator):
    oidc_claim_scope = None

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        return {"preferred_username": request.user.get_username()}
