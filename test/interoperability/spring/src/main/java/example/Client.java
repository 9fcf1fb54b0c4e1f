package example;

import com.nimbusds.jose.jwk.JWK;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.security.core.annotation.AuthenticationPrincipal;
import org.springframework.security.oauth2.client.OAuth2AuthorizationContext;
import org.springframework.security.oauth2.client.OAuth2AuthorizedClient;
import org.springframework.security.oauth2.client.RefreshTokenOAuth2AuthorizedClientProvider;
import org.springframework.security.oauth2.client.annotation.RegisteredOAuth2AuthorizedClient;
import org.springframework.security.oauth2.client.authentication.OAuth2AuthenticationToken;
import org.springframework.security.oauth2.client.endpoint.NimbusJwtClientAuthenticationParametersConverter;
import org.springframework.security.oauth2.client.endpoint.RestClientAuthorizationCodeTokenResponseClient;
import org.springframework.security.oauth2.client.endpoint.RestClientRefreshTokenTokenResponseClient;
import org.springframework.security.oauth2.core.oidc.user.OidcUser;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.client.RestClient;

/** Signs a user in with Spring Security's defaults, renews the token and calls the API. */
@SpringBootApplication
@RestController
public class Client {
  private final String issuer;
  private final JWK key;

  Client(@Value("${ISSUER:http://localhost:3000}") String issuer, @Value("${KEY_FILE}") Path key) throws Exception {
    this.issuer = issuer;
    this.key = JWK.parse(Files.readString(key));
  }

  public static void main(String[] arguments) {
    SpringApplication.run(Client.class, arguments);
  }

  /** With private_key_jwt the key must be named; the audience stays Spring's default, the token endpoint. */
  @Bean
  RestClientAuthorizationCodeTokenResponseClient codes() {
    var client = new RestClientAuthorizationCodeTokenResponseClient();
    client.addParametersConverter(new NimbusJwtClientAuthenticationParametersConverter<>(registration -> key));
    return client;
  }

  @Bean
  RestClientRefreshTokenTokenResponseClient refreshes() {
    var client = new RestClientRefreshTokenTokenResponseClient();
    client.addParametersConverter(new NimbusJwtClientAuthenticationParametersConverter<>(registration -> key));
    return client;
  }

  @GetMapping("/")
  Map<String, Object> me(
      @AuthenticationPrincipal OidcUser user,
      @RegisteredOAuth2AuthorizedClient OAuth2AuthorizedClient client,
      OAuth2AuthenticationToken authentication) {
    // Each token counts as expired here, so that the library renews it.
    var provider = new RefreshTokenOAuth2AuthorizedClientProvider();
    provider.setAccessTokenResponseClient(refreshes());
    provider.setClockSkew(Duration.ofHours(1));
    var context = OAuth2AuthorizationContext.withAuthorizedClient(client).principal(authentication).build();
    var renewed = provider.authorize(context).getAccessToken().getTokenValue();
    var api = RestClient.create(issuer).get().uri("/api").headers(headers -> headers.setBearerAuth(renewed));
    return Map.of(
        "subject", user.getSubject(),
        "email", user.getEmail(),
        "renewed", !renewed.equals(client.getAccessToken().getTokenValue()),
        "api", api.retrieve().body(Map.class));
  }
}
