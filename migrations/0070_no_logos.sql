-- Pictures that apps registered by themselves are not shown anywhere, and are not kept any more. Owner: src/clients.
update clients set metadata = metadata - 'logo_uri' where origin in ('registration', 'document') and metadata ? 'logo_uri';
