/** Verification code for signatures with the headers of Standard Webhooks: `standard` and `ed25519`. */

import type { Sample } from './code_sample.ts';

/** Code without a library, which is as short as with one. */
export const standardCode: readonly Sample[] = [
  {
    language: 'Node.js',
    code: `// npm install standardwebhooks
import { Webhook } from 'standardwebhooks';

// body: the raw text of the request; throws if the signature is wrong or old
export function verify(body, headers, secret) {
  return new Webhook(secret).verify(body, headers);
}`,
  },
  {
    language: 'Python',
    code: `import base64, hashlib, hmac, time

# body: the bytes as they came, not parsed and written again
def verify(body: bytes, headers, secret: str) -> bool:
    named = {name.lower(): value for name, value in headers.items()}
    sent_at = named.get("webhook-timestamp", "")
    try:
        # Older than 5 minutes: it may be a replay.
        if abs(int(time.time()) - int(sent_at)) > 300:
            return False
    except ValueError:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{named.get('webhook-id', '')}.{sent_at}.".encode() + body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(digest)
    signatures = named.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(each.encode(), expected) for each in signatures)`,
  },
  {
    language: 'Go',
    code: `func Verify(body []byte, header http.Header, secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	id, sentAt := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(sentAt, 10, 64)
	// Reject timestamps older than 5 minutes: they may be replays.
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + sentAt + "."))
	mac.Write(body)
	expected := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	for _, signature := range strings.Fields(header.Get("Webhook-Signature")) {
		if hmac.Equal([]byte(signature), expected) {
			return true
		}
	}
	return false
}`,
  },
  {
    language: 'Ruby',
    code: `require "openssl"

# In Rails: verify(request.raw_post, request.headers, secret)
def verify(body, headers, secret)
  id, sent_at, signatures = ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"].map do |name|
    (headers[name] || headers[name.downcase]).to_s
  end
  # Older than 5 minutes: it may be a replay.
  return false if (Time.now.to_i - sent_at.to_i).abs > 300
  key = secret.delete_prefix("whsec_").unpack1("m")
  signed = "#{id}.#{sent_at}.#{body}"
  expected = "v1," + [OpenSSL::HMAC.digest("SHA256", key, signed)].pack("m0")
  signatures.split.any? { |each| OpenSSL.secure_compare(each, expected) }
end`,
  },
  {
    language: 'PHP',
    code: `function verify(string $body, array $server, string $secret): bool {
    $id = $server['HTTP_WEBHOOK_ID'] ?? '';
    $sentAt = $server['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    // Reject timestamps older than 5 minutes: they may be replays.
    if (abs(time() - (int) $sentAt) > 300) return false;
    $key = base64_decode(preg_replace('/^whsec_/', '', $secret));
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$sentAt.$body", $key, true));
    foreach (explode(' ', $server['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $signature) {
        if (hash_equals($expected, $signature)) return true;
    }
    return false;
}
$isGenuine = verify(file_get_contents('php://input'), $_SERVER, $secret);`,
  },
  {
    language: 'Java',
    code: `// In a servlet: verify(body, request::getHeader, secret)
static boolean verify(byte[] body, Function<String, String> headers, String secret)
    throws GeneralSecurityException {
  String sentAt = String.valueOf(headers.apply("webhook-timestamp"));
  if (!sentAt.matches("[0-9]{1,12}")) return false;
  // Reject timestamps older than 5 minutes: they may be replays.
  if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(sentAt)) > 300) return false;
  Mac mac = Mac.getInstance("HmacSHA256");
  byte[] key = Base64.getDecoder().decode(secret.replaceFirst("^whsec_", ""));
  mac.init(new SecretKeySpec(key, "HmacSHA256"));
  mac.update((headers.apply("webhook-id") + "." + sentAt + ".").getBytes(UTF_8));
  byte[] expected = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body))).getBytes(UTF_8);
  for (String given : String.valueOf(headers.apply("webhook-signature")).split(" ")) {
    if (MessageDigest.isEqual(given.getBytes(UTF_8), expected)) return true;
  }
  return false;
}`,
  },
];

export const ed25519Code = (publicKey: string): Sample[] => [
  {
    language: 'Node.js',
    code: `import { createPublicKey, verify as verifySignature } from 'node:crypto';

const publicKey = '${publicKey}'; // GET /meta
const key = createPublicKey({
  format: 'jwk',
  key: { kty: 'OKP', crv: 'Ed25519', x: Buffer.from(publicKey.slice(5), 'base64').toString('base64url') },
});

// body: the raw bytes of the request, not parsed and serialized again
export function verify(body, headers) {
  const [id, time, signatures] = ['webhook-id', 'webhook-timestamp', 'webhook-signature'].map(
    (wanted) =>
      [...(headers.entries?.() ?? Object.entries(headers))].find(
        ([name]) => name.toLowerCase() === wanted,
      )?.[1],
  );
  // Reject timestamps older than 5 minutes: they may be replays.
  if (!(Math.abs(Date.now() / 1000 - Number(time)) <= 300)) return false;
  const signed = Buffer.concat([Buffer.from(id + '.' + time + '.'), Buffer.from(body)]);
  return String(signatures).split(' ').some((signature) => {
    const [version, value = ''] = signature.split(',');
    return version === 'v1a' && verifySignature(null, signed, key, Buffer.from(value, 'base64'));
  });
}`,
  },
  {
    language: 'Python',
    code: `# pip install cryptography
import base64, time
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

public_key = "${publicKey}"  # GET /meta
key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key[5:]))

def verify(body: bytes, headers) -> bool:
    named = {name.lower(): value for name, value in headers.items()}
    sent_at = named.get("webhook-timestamp", "")
    try:
        # Older than 5 minutes: it may be a replay.
        if abs(int(time.time()) - int(sent_at)) > 300:
            return False
    except ValueError:
        return False
    signed = f"{named.get('webhook-id', '')}.{sent_at}.".encode() + body
    for signature in named.get("webhook-signature", "").split(" "):
        version, _, value = signature.partition(",")
        try:
            if version == "v1a":
                key.verify(base64.b64decode(value), signed)
                return True
        except (InvalidSignature, ValueError):
            pass  # another one may be good
    return False`,
  },
  {
    language: 'Go',
    code: `const publicKey = "${publicKey}" // GET /meta

func Verify(body []byte, header http.Header) bool {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(publicKey, "whpk_"))
	id, sentAt := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(sentAt, 10, 64)
	// Reject timestamps older than 5 minutes: they may be replays.
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	signed := append([]byte(id+"."+sentAt+"."), body...)
	for _, each := range strings.Fields(header.Get("Webhook-Signature")) {
		version, value, _ := strings.Cut(each, ",")
		signature, err := base64.StdEncoding.DecodeString(value)
		if version == "v1a" && err == nil && ed25519.Verify(key, signed, signature) {
			return true
		}
	}
	return false
}`,
  },
  {
    language: 'Ruby',
    code: `# gem install ed25519
require "ed25519"

PUBLIC_KEY = "${publicKey}" # GET /meta
KEY = Ed25519::VerifyKey.new(PUBLIC_KEY.delete_prefix("whpk_").unpack1("m"))

# In Rails: verify(request.raw_post, request.headers)
def verify(body, headers)
  id, sent_at, signatures = ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"].map do |name|
    (headers[name] || headers[name.downcase]).to_s
  end
  # Older than 5 minutes: it may be a replay.
  return false if (Time.now.to_i - sent_at.to_i).abs > 300
  signed = "#{id}.#{sent_at}.#{body}"
  signatures.split.any? do |each|
    version, value = each.split(",", 2)
    version == "v1a" && KEY.verify(value.to_s.unpack1("m"), signed)
  rescue Ed25519::VerifyError, ArgumentError
    false # another one may be good
  end
end`,
  },
  {
    language: 'PHP',
    code: `function verify(string $body, array $server): bool {
    $publicKey = base64_decode(substr('${publicKey}', 5)); // GET /meta
    $id = $server['HTTP_WEBHOOK_ID'] ?? '';
    $sentAt = $server['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    // Reject timestamps older than 5 minutes: they may be replays.
    if (abs(time() - (int) $sentAt) > 300) return false;
    foreach (explode(' ', $server['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $each) {
        [$version, $value] = array_pad(explode(',', $each, 2), 2, '');
        $signature = (string) base64_decode($value);
        if ($version !== 'v1a' || strlen($signature) !== SODIUM_CRYPTO_SIGN_BYTES) continue;
        if (sodium_crypto_sign_verify_detached($signature, "$id.$sentAt.$body", $publicKey)) return true;
    }
    return false;
}
$isGenuine = verify(file_get_contents('php://input'), $_SERVER);`,
  },
  {
    language: 'Java',
    code: `static final String PUBLIC_KEY = "${publicKey}"; // GET /meta

// In a servlet: verify(body, request::getHeader)
static boolean verify(byte[] body, Function<String, String> headers) throws GeneralSecurityException {
  // The 32 bytes of the key after the header of an Ed25519 SubjectPublicKeyInfo.
  byte[] spki = HexFormat.of().parseHex("302a300506032b6570032100" +
      HexFormat.of().formatHex(Base64.getDecoder().decode(PUBLIC_KEY.substring(5))));
  PublicKey key = KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(spki));
  String sentAt = String.valueOf(headers.apply("webhook-timestamp"));
  if (!sentAt.matches("[0-9]{1,12}")) return false;
  // Reject timestamps older than 5 minutes: they may be replays.
  if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(sentAt)) > 300) return false;
  for (String each : String.valueOf(headers.apply("webhook-signature")).split(" ")) {
    if (!each.startsWith("v1a,")) continue;
    Signature signature = Signature.getInstance("Ed25519");
    signature.initVerify(key);
    signature.update((headers.apply("webhook-id") + "." + sentAt + ".").getBytes(UTF_8));
    signature.update(body);
    try {
      if (signature.verify(Base64.getDecoder().decode(each.substring(4)))) return true;
    } catch (IllegalArgumentException | SignatureException malformed) {
      // Another signature may match.
    }
  }
  return false;
}`,
  },
];
