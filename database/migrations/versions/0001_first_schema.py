"""first schema"""

import sqlalchemy as sa
from alembic import op
from database.types import Document, UtcTime, WholeDocument
revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('agents',
    sa.Column('id', sa.String(length=120), nullable=False),
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('address', sa.String(length=255), nullable=False),
    sa.Column('slot_ids', Document, nullable=False),
    sa.Column('is_connected', sa.Boolean(), nullable=False),
    sa.Column('is_enabled', sa.Boolean(), nullable=False),
    sa.Column('is_draining', sa.Boolean(), nullable=False),
    sa.Column('leave_at', UtcTime(), nullable=True),
    sa.Column('disabled_slots', Document, nullable=False),
    sa.Column('revision', sa.BigInteger(), nullable=False),
    sa.Column('registered_at', UtcTime(), nullable=False),
    sa.Column('version', sa.String(length=40), nullable=False),
    sa.Column('launcher', sa.String(length=40), nullable=False),
    sa.Column('labels', Document, nullable=False),
    sa.Column('devices', Document, nullable=False),
    sa.Column('broken_slots', Document, nullable=False),
    sa.Column('topology', Document, nullable=False),
    sa.Column('slots_per_pod', sa.Integer(), nullable=True),
    sa.Column('nodes', Document, nullable=False),
    sa.Column('credential_hash', sa.String(length=64), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_agents')),
    sa.UniqueConstraint('credential_hash', name=op.f('uq_agents_credential_hash'))
    )
    op.create_table('answered_requests',
    sa.Column('key', sa.String(length=120), nullable=False),
    sa.Column('request_digest', sa.String(length=64), nullable=False),
    sa.Column('answer', sa.Text(), nullable=False),
    sa.Column('at', UtcTime(), nullable=False),
    sa.PrimaryKeyConstraint('key', name=op.f('pk_answered_requests'))
    )
    with op.batch_alter_table('answered_requests', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_answered_requests_at'), ['at'], unique=False)

    op.create_table('api_processes',
    sa.Column('id', sa.String(length=32), nullable=False),
    sa.Column('url', sa.String(length=300), nullable=False),
    sa.Column('server_name', sa.String(length=255), nullable=False),
    sa.Column('seen_at', UtcTime(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_api_processes'))
    )
    op.create_table('audit_entries',
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('at', UtcTime(), nullable=False),
    sa.Column('actor_id', sa.Integer(), nullable=True),
    sa.Column('actor', sa.String(length=160), nullable=False),
    sa.Column('token_id', sa.Integer(), nullable=True),
    sa.Column('address', sa.String(length=80), nullable=False),
    sa.Column('method', sa.String(length=12), nullable=False),
    sa.Column('route', sa.String(length=250), nullable=False),
    sa.Column('target', sa.Text(), nullable=False),
    sa.Column('fields', Document, nullable=False),
    sa.Column('rows', Document, nullable=False),
    sa.Column('previous', sa.String(length=64), nullable=False),
    sa.Column('hash', sa.String(length=64), nullable=False),
    sa.PrimaryKeyConstraint('number', name=op.f('pk_audit_entries')),
    sa.UniqueConstraint('hash', name=op.f('uq_audit_entries_hash'))
    )
    with op.batch_alter_table('audit_entries', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_audit_entries_actor_id'), ['actor_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_audit_entries_at'), ['at'], unique=False)
        batch_op.create_index(batch_op.f('ix_audit_entries_route'), ['route'], unique=False)

    op.create_table('cluster',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('cluster_id', sa.String(length=36), nullable=False),
    sa.Column('secret', sa.String(length=64), nullable=False),
    sa.Column('name', sa.String(length=120), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('compute_pool', sa.String(length=120), nullable=False),
    sa.Column('aux_pool', sa.String(length=120), nullable=False),
    sa.Column('log_level', sa.String(length=12), nullable=False),
    sa.Column('oldest_schema', sa.String(length=12), server_default='', nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_cluster'))
    )
    op.create_table('groups',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=120), nullable=False),
    sa.Column('is_provisioned', sa.Boolean(), nullable=False),
    sa.Column('external_id', sa.String(length=255), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_groups')),
    sa.UniqueConstraint('name', name=op.f('uq_groups_name'))
    )
    op.create_table('import_marks',
    sa.Column('source', sa.String(length=36), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('key', sa.String(length=160), nullable=False),
    sa.Column('ours', sa.String(length=160), nullable=False),
    sa.Column('digest', sa.String(length=80), nullable=False),
    sa.PrimaryKeyConstraint('source', 'kind', 'key', name=op.f('pk_import_marks'))
    )
    with op.batch_alter_table('import_marks', schema=None) as batch_op:
        batch_op.create_index('ix_import_marks_ours', ['kind', 'ours'], unique=False)

    op.create_table('login_failures',
    sa.Column('name_hash', sa.String(length=64), nullable=False),
    sa.Column('failures', sa.Integer(), nullable=False),
    sa.Column('last_at', UtcTime(), nullable=False),
    sa.PrimaryKeyConstraint('name_hash', name=op.f('pk_login_failures'))
    )
    with op.batch_alter_table('login_failures', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_login_failures_last_at'), ['last_at'], unique=False)

    op.create_table('outbox',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('workflow_id', sa.String(length=120), nullable=False),
    sa.Column('kind', sa.String(length=40), nullable=False),
    sa.Column('payload', Document, nullable=False),
    sa.Column('trace', sa.String(length=55), nullable=True),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('sent_at', UtcTime(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_outbox'))
    )
    with op.batch_alter_table('outbox', schema=None) as batch_op:
        batch_op.create_index('ix_outbox_waiting', ['id'], unique=False, sqlite_where=sa.text('sent_at IS NULL'), postgresql_where=sa.text('sent_at IS NULL'))

    op.create_table('pool_samples',
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('at', UtcTime(), nullable=False),
    sa.Column('slots', sa.Integer(), nullable=False),
    sa.Column('parts', Document, nullable=False),
    sa.PrimaryKeyConstraint('pool', 'at', name=op.f('pk_pool_samples'))
    )
    op.create_table('resource_pools',
    sa.Column('name', sa.String(length=120), nullable=False),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('settings', Document, nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('restricted_at', UtcTime(), nullable=True),
    sa.Column('restricted_by', sa.String(length=120), nullable=False),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_resource_pools'))
    )
    op.create_table('task_logs',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('allocation_id', sa.String(length=100), nullable=True),
    sa.Column('agent_id', sa.String(length=120), nullable=True),
    sa.Column('container_id', sa.String(length=120), nullable=True),
    sa.Column('line_offset', sa.BigInteger(), nullable=True),
    sa.Column('rank_id', sa.Integer(), nullable=True),
    sa.Column('timestamp', UtcTime(), nullable=False),
    sa.Column('level', sa.String(length=12), nullable=True),
    sa.Column('source', sa.String(length=40), nullable=True),
    sa.Column('stdtype', sa.String(length=8), nullable=True),
    sa.Column('log', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_task_logs')),
    sa.UniqueConstraint('container_id', 'line_offset', name=op.f('uq_task_logs_container_id_line_offset')),
    sqlite_autoincrement=True
    )
    with op.batch_alter_table('task_logs', schema=None) as batch_op:
        batch_op.create_index('ix_task_logs_severe', ['task_id', 'id'], unique=False, sqlite_where=sa.text("level IN ('WARNING', 'ERROR', 'CRITICAL')"), postgresql_where=sa.text("level IN ('WARNING', 'ERROR', 'CRITICAL')"))
        batch_op.create_index('ix_task_logs_task_id_id', ['task_id', 'id'], unique=False)

    op.create_table('log_blocks',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('first_id', sa.BigInteger(), nullable=False),
    sa.Column('last_id', sa.BigInteger(), nullable=False),
    sa.Column('line_count', sa.Integer(), nullable=False),
    sa.Column('first_at', UtcTime(), nullable=False),
    sa.Column('last_at', UtcTime(), nullable=False),
    sa.Column('is_severe', sa.Boolean(), nullable=False),
    sa.Column('levels', Document, nullable=False),
    sa.Column('listed', Document, nullable=False),
    sa.Column('trigrams', sa.LargeBinary(), nullable=False),
    sa.Column('packed', sa.LargeBinary(), nullable=False),
    sa.Column('texts', sa.LargeBinary(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_log_blocks')),
    sa.UniqueConstraint('task_id', 'last_id', name=op.f('uq_log_blocks_task_id_last_id'))
    )
    with op.batch_alter_table('log_blocks', schema=None) as batch_op:
        batch_op.create_index('ix_log_blocks_severe', ['task_id', 'last_id'], unique=False, sqlite_where=sa.text('is_severe = 1'), postgresql_where=sa.text('is_severe'))

    op.create_table('log_block_containers',
    sa.Column('block_id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('container_id', sa.String(length=120), nullable=False),
    sa.Column('first_offset', sa.BigInteger(), nullable=False),
    sa.Column('last_offset', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['block_id'], ['log_blocks.id'], name=op.f('fk_log_block_containers_block_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('block_id', 'container_id', name=op.f('pk_log_block_containers'))
    )
    with op.batch_alter_table('log_block_containers', schema=None) as batch_op:
        batch_op.create_index('ix_log_block_containers_container_id_last_offset', ['container_id', 'last_offset'], unique=False)

    op.create_table('token_keys',
    sa.Column('public_key', sa.String(length=64), nullable=False),
    sa.Column('source', sa.String(length=36), nullable=False),
    sa.PrimaryKeyConstraint('public_key', name=op.f('pk_token_keys'))
    )
    op.create_table('users',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('username', sa.String(length=120), nullable=False),
    sa.Column('display_name', sa.String(length=120), nullable=True),
    sa.Column('password_hash', sa.String(length=255), nullable=True),
    sa.Column('is_admin', sa.Boolean(), nullable=False),
    sa.Column('is_active', sa.Boolean(), nullable=False),
    sa.Column('is_remote', sa.Boolean(), nullable=False),
    sa.Column('is_provisioned', sa.Boolean(), nullable=False),
    sa.Column('external_id', sa.String(length=255), nullable=True),
    sa.Column('agent_uid', sa.Integer(), nullable=True),
    sa.Column('agent_user', sa.String(length=120), nullable=True),
    sa.Column('agent_gid', sa.Integer(), nullable=True),
    sa.Column('agent_group', sa.String(length=120), nullable=True),
    sa.Column('modified_at', UtcTime(), nullable=False),
    sa.Column('last_auth_at', UtcTime(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_users')),
    sa.UniqueConstraint('username', name=op.f('uq_users_username'))
    )
    op.create_table('agent_join_tokens',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('token_hash', sa.String(length=64), nullable=False),
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('uses_left', sa.Integer(), nullable=True),
    sa.Column('created_by', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('expires_at', UtcTime(), nullable=False),
    sa.Column('revoked_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['created_by'], ['users.id'], name=op.f('fk_agent_join_tokens_created_by')),
    sa.ForeignKeyConstraint(['pool'], ['resource_pools.name'], name=op.f('fk_agent_join_tokens_pool'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_agent_join_tokens')),
    sa.UniqueConstraint('token_hash', name=op.f('uq_agent_join_tokens_token_hash'))
    )
    op.create_table('cluster_messages',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('starts_at', UtcTime(), nullable=False),
    sa.Column('ends_at', UtcTime(), nullable=True),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('created_by', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['created_by'], ['users.id'], name=op.f('fk_cluster_messages_created_by')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_cluster_messages'))
    )
    op.create_table('context_chunks',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('size_bytes', sa.Integer(), nullable=False),
    sa.Column('used_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_context_chunks_owner_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_context_chunks')),
    sa.UniqueConstraint('owner_id', 'digest', name=op.f('uq_context_chunks_owner_id_digest'))
    )
    with op.batch_alter_table('context_chunks', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_context_chunks_used_at'), ['used_at'], unique=False)

    op.create_table('contexts',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('manifest', sa.LargeBinary(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('used_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_contexts_owner_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_contexts')),
    sa.UniqueConstraint('owner_id', 'digest', name=op.f('uq_contexts_owner_id_digest'))
    )
    with op.batch_alter_table('contexts', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_contexts_used_at'), ['used_at'], unique=False)

    op.create_table('group_members',
    sa.Column('group_id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['group_id'], ['groups.id'], name=op.f('fk_group_members_group_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_group_members_user_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('group_id', 'user_id', name=op.f('pk_group_members'))
    )
    with op.batch_alter_table('group_members', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_group_members_user_id'), ['user_id'], unique=False)

    op.create_table('imports',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('mode', sa.String(length=12), nullable=False),
    sa.Column('state', sa.String(length=12), nullable=False),
    sa.Column('source', sa.Text(), nullable=False),
    sa.Column('shown_source', sa.Text(), nullable=False),
    sa.Column('is_shifted', sa.Boolean(), nullable=False),
    sa.Column('cluster_id', sa.String(length=36), nullable=False),
    sa.Column('schema_version', sa.String(length=24), nullable=False),
    sa.Column('shifts', Document, nullable=False),
    sa.Column('warnings', Document, nullable=False),
    sa.Column('error', sa.Text(), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_imports_owner_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_imports'))
    )
    op.create_table('submissions',
    sa.Column('job_id', sa.String(length=36), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('entity_id', sa.String(length=80), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('project_id', sa.Integer(), nullable=True),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('idempotency_key', sa.String(length=128), nullable=True),
    sa.Column('request_digest', sa.String(length=64), nullable=False),
    sa.Column('submitted_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_submissions_owner_id')),
    sa.PrimaryKeyConstraint('job_id', name=op.f('pk_submissions')),
    sa.UniqueConstraint('owner_id', 'idempotency_key', name=op.f('uq_submissions_owner_id_idempotency_key'))
    )
    with op.batch_alter_table('submissions', schema=None) as batch_op:
        batch_op.create_index('ix_submissions_of', ['owner_id', 'submitted_at'], unique=False)

    op.create_table('user_settings',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('storage_path', sa.String(length=250), nullable=False),
    sa.Column('key', sa.String(length=250), nullable=False),
    sa.Column('value', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_user_settings_user_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_user_settings')),
    sa.UniqueConstraint('user_id', 'storage_path', 'key', name=op.f('uq_user_settings_user_id_storage_path_key'))
    )
    op.create_table('user_tokens',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('token_hash', sa.String(length=64), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('scope', sa.String(length=24), nullable=False),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('expires_at', UtcTime(), nullable=False),
    sa.Column('revoked_at', UtcTime(), nullable=True),
    sa.Column('last_used_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_user_tokens_user_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_user_tokens')),
    sa.UniqueConstraint('token_hash', name=op.f('uq_user_tokens_token_hash'))
    )
    with op.batch_alter_table('user_tokens', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_user_tokens_user_id'), ['user_id'], unique=False)

    op.create_table('workspaces',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=80), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('everyone', sa.String(length=24), nullable=True),
    sa.Column('is_immutable', sa.Boolean(), nullable=False),
    sa.Column('is_archived', sa.Boolean(), nullable=False),
    sa.Column('checkpoint_storage', Document, nullable=True),
    sa.Column('default_compute_pool', sa.String(length=120), nullable=True),
    sa.Column('default_aux_pool', sa.String(length=120), nullable=True),
    sa.Column('agent_user_group', Document, nullable=True),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('error', sa.Text(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_workspaces_owner_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_workspaces')),
    sa.UniqueConstraint('name', name=op.f('uq_workspaces_name'))
    )
    with op.batch_alter_table('workspaces', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_workspaces_owner_id'), ['owner_id'], unique=False)

    op.create_table('config_policies',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=True),
    sa.Column('workload', sa.String(length=24), nullable=False),
    sa.Column('content', Document, nullable=False),
    sa.Column('changed_by', sa.Integer(), nullable=False),
    sa.Column('changed_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['changed_by'], ['users.id'], name=op.f('fk_config_policies_changed_by')),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_config_policies_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_config_policies')),
    sa.UniqueConstraint('workspace_id', 'workload', name=op.f('uq_config_policies_workspace_id_workload'))
    )
    with op.batch_alter_table('config_policies', schema=None) as batch_op:
        batch_op.create_index('uq_config_policies_cluster', ['workload'], unique=True, sqlite_where=sa.text('workspace_id IS NULL'), postgresql_where=sa.text('workspace_id IS NULL'))

    op.create_table('context_chunk_data',
    sa.Column('chunk_id', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('content', sa.LargeBinary(), nullable=False),
    sa.ForeignKeyConstraint(['chunk_id'], ['context_chunks.id'], name=op.f('fk_context_chunk_data_chunk_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('chunk_id', name=op.f('pk_context_chunk_data'))
    )
    op.create_table('context_parts',
    sa.Column('context_id', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('number', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('chunk_id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.ForeignKeyConstraint(['chunk_id'], ['context_chunks.id'], name=op.f('fk_context_parts_chunk_id')),
    sa.ForeignKeyConstraint(['context_id'], ['contexts.id'], name=op.f('fk_context_parts_context_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('context_id', 'number', name=op.f('pk_context_parts'))
    )
    with op.batch_alter_table('context_parts', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_context_parts_chunk_id'), ['chunk_id'], unique=False)

    op.create_table('import_tables',
    sa.Column('import_id', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('place', sa.Integer(), nullable=False),
    sa.Column('holder', sa.String(length=32), nullable=False),
    sa.Column('cursor', sa.String(length=200), nullable=False),
    sa.Column('is_done', sa.Boolean(), nullable=False),
    sa.Column('total', sa.BigInteger(), nullable=False),
    sa.Column('read', sa.BigInteger(), nullable=False),
    sa.Column('written', sa.BigInteger(), nullable=False),
    sa.Column('unchanged', sa.BigInteger(), nullable=False),
    sa.Column('differing', sa.BigInteger(), nullable=False),
    sa.Column('checksum', sa.String(length=16), nullable=False),
    sa.Column('our_checksum', sa.String(length=16), nullable=False),
    sa.Column('skipped', Document, nullable=False),
    sa.Column('started_at', UtcTime(), nullable=True),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['import_id'], ['imports.id'], name=op.f('fk_import_tables_import_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('import_id', 'kind', name=op.f('pk_import_tables'))
    )
    op.create_table('models',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=255), nullable=False),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('notes', sa.Text(), nullable=False),
    sa.Column('labels', Document, nullable=False),
    sa.Column('metadata', Document, nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('is_archived', sa.Boolean(), nullable=False),
    sa.Column('last_version', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('updated_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_models_owner_id')),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_models_workspace_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_models')),
    sa.UniqueConstraint('name', name=op.f('uq_models_name'))
    )
    with op.batch_alter_table('models', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_models_owner_id'), ['owner_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_models_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('namespace_bindings',
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('cluster', sa.String(length=120), nullable=False),
    sa.Column('namespace', sa.String(length=63), nullable=False),
    sa.Column('own', sa.String(length=63), nullable=False),
    sa.Column('quota', sa.Integer(), nullable=True),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_namespace_bindings_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('workspace_id', 'cluster', name=op.f('pk_namespace_bindings'))
    )
    op.create_table('pool_bindings',
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.ForeignKeyConstraint(['pool'], ['resource_pools.name'], name=op.f('fk_pool_bindings_pool'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_pool_bindings_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('pool', 'workspace_id', name=op.f('pk_pool_bindings'))
    )
    with op.batch_alter_table('pool_bindings', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_pool_bindings_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('pool_grants',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('user_id', sa.Integer(), nullable=True),
    sa.Column('group_id', sa.Integer(), nullable=True),
    sa.Column('workspace_id', sa.Integer(), nullable=True),
    sa.CheckConstraint('CASE WHEN user_id IS NULL THEN 0 ELSE 1 END + CASE WHEN group_id IS NULL THEN 0 ELSE 1 END + CASE WHEN workspace_id IS NULL THEN 0 ELSE 1 END = 1', name='one_holder'),
    sa.ForeignKeyConstraint(['group_id'], ['groups.id'], name=op.f('fk_pool_grants_group_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['pool'], ['resource_pools.name'], name=op.f('fk_pool_grants_pool'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_pool_grants_user_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_pool_grants_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_pool_grants')),
    sa.UniqueConstraint('pool', 'group_id', name=op.f('uq_pool_grants_pool_group_id')),
    sa.UniqueConstraint('pool', 'user_id', name=op.f('uq_pool_grants_pool_user_id')),
    sa.UniqueConstraint('pool', 'workspace_id', name=op.f('uq_pool_grants_pool_workspace_id'))
    )
    with op.batch_alter_table('pool_grants', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_pool_grants_group_id'), ['group_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_pool_grants_user_id'), ['user_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_pool_grants_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('projects',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=80), nullable=False),
    sa.Column('key', sa.String(length=5), nullable=True),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('notes', Document, nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('is_immutable', sa.Boolean(), nullable=False),
    sa.Column('is_archived', sa.Boolean(), nullable=False),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('error', sa.Text(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_projects_owner_id')),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_projects_workspace_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_projects')),
    sa.UniqueConstraint('key', name=op.f('uq_projects_key')),
    sa.UniqueConstraint('workspace_id', 'name', name=op.f('uq_projects_workspace_id_name'))
    )
    op.create_table('role_assignments',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('role', sa.String(length=40), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=True),
    sa.Column('user_id', sa.Integer(), nullable=True),
    sa.Column('group_id', sa.Integer(), nullable=True),
    sa.CheckConstraint('(user_id IS NULL) <> (group_id IS NULL)', name='one_holder'),
    sa.ForeignKeyConstraint(['group_id'], ['groups.id'], name=op.f('fk_role_assignments_group_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_role_assignments_user_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_role_assignments_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_role_assignments'))
    )
    with op.batch_alter_table('role_assignments', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_role_assignments_group_id'), ['group_id'], unique=False)
        batch_op.create_index('ix_role_assignments_holder', ['user_id', 'group_id', 'workspace_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_role_assignments_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('templates',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=80), nullable=False),
    sa.Column('config', Document, nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_templates_owner_id')),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_templates_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_templates')),
    sa.UniqueConstraint('name', name=op.f('uq_templates_name'))
    )
    with op.batch_alter_table('templates', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_templates_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('webhooks',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=80), nullable=False),
    sa.Column('url', sa.Text(), nullable=False),
    sa.Column('secret', sa.String(length=80), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('mode', sa.String(length=24), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=True),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_webhooks_owner_id')),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_webhooks_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_webhooks'))
    )
    with op.batch_alter_table('webhooks', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_webhooks_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('workspace_pins',
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('pinned_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_workspace_pins_user_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_workspace_pins_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('user_id', 'workspace_id', name=op.f('pk_workspace_pins'))
    )
    with op.batch_alter_table('workspace_pins', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_workspace_pins_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('campaigns',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=120), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('token_id', sa.Integer(), nullable=True),
    sa.Column('workspace_id', sa.Integer(), nullable=False),
    sa.Column('project_id', sa.Integer(), nullable=True),
    sa.Column('version', sa.Integer(), nullable=False),
    sa.Column('is_paused', sa.Boolean(), nullable=False),
    sa.Column('revision', sa.Integer(), nullable=False),
    sa.Column('last_number', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('updated_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_campaigns_owner_id')),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], name=op.f('fk_campaigns_project_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_campaigns_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_campaigns')),
    sqlite_autoincrement=True
    )
    with op.batch_alter_table('campaigns', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_campaigns_owner_id'), ['owner_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_campaigns_project_id'), ['project_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_campaigns_workspace_id'), ['workspace_id'], unique=False)

    op.create_table('experiments',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('job_id', sa.String(length=36), nullable=False),
    sa.Column('idempotency_key', sa.String(length=120), nullable=True),
    sa.Column('request_digest', sa.String(length=64), nullable=True),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('description', sa.Text(), nullable=False),
    sa.Column('notes', sa.Text(), nullable=False),
    sa.Column('labels', Document, nullable=False),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('revision', sa.Integer(), nullable=False),
    sa.Column('error', sa.Text(), nullable=False),
    sa.Column('progress', sa.Double(), nullable=False),
    sa.Column('config', WholeDocument, nullable=False),
    sa.Column('original_config', sa.Text(), nullable=False),
    sa.Column('searcher_name', sa.String(length=40), nullable=False),
    sa.Column('searcher_metric', sa.Text(), nullable=False),
    sa.Column('smaller_is_better', sa.Boolean(), nullable=False),
    sa.Column('wants_validations', sa.Boolean(), nullable=False),
    sa.Column('time_metric', sa.Text(), nullable=True),
    sa.Column('has_operations', sa.Boolean(), nullable=False),
    sa.Column('max_length', sa.BigInteger(), nullable=True),
    sa.Column('resource_pool', sa.String(length=120), nullable=False),
    sa.Column('pool_moves', sa.Integer(), nullable=False),
    sa.Column('slots_per_trial', sa.Integer(), nullable=False),
    sa.Column('queue_position', sa.BigInteger(), nullable=True),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('token_id', sa.Integer(), nullable=True),
    sa.Column('project_id', sa.Integer(), nullable=False),
    sa.Column('parent_id', sa.Integer(), nullable=True),
    sa.Column('forked_at', sa.Integer(), nullable=True),
    sa.Column('inherited', Document, nullable=False),
    sa.Column('source_checkpoint', sa.String(length=36), nullable=True),
    sa.Column('continuations', sa.Integer(), nullable=False),
    sa.Column('searcher_queue', Document, nullable=False),
    sa.Column('trial_count', sa.Integer(), server_default='0', nullable=False),
    sa.Column('is_archived', sa.Boolean(), nullable=False),
    sa.Column('log_retention_days', sa.Integer(), nullable=True),
    sa.Column('is_unmanaged', sa.Boolean(), nullable=False),
    sa.Column('external_id', sa.String(length=255), nullable=True),
    sa.Column('commanded', sa.String(length=24), nullable=False),
    sa.Column('commanded_by', sa.String(length=120), nullable=False),
    sa.Column('commanded_at', UtcTime(), nullable=True),
    sa.Column('started_at', UtcTime(), nullable=False),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_experiments_owner_id')),
    sa.ForeignKeyConstraint(['parent_id'], ['experiments.id'], name=op.f('fk_experiments_parent_id')),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], name=op.f('fk_experiments_project_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_experiments')),
    sa.UniqueConstraint('external_id', name=op.f('uq_experiments_external_id')),
    sa.UniqueConstraint('idempotency_key', name=op.f('uq_experiments_idempotency_key')),
    sa.UniqueConstraint('job_id', name=op.f('uq_experiments_job_id')),
    sqlite_autoincrement=True
    )
    with op.batch_alter_table('experiments', schema=None) as batch_op:
        if op.get_context().dialect.name == 'sqlite':  # see the model
            batch_op.create_index('ix_experiments_by_name', ['project_id', 'name'], unique=False)
        batch_op.create_index('ix_experiments_by_start', ['started_at', 'id'], unique=False)
        batch_op.create_index('ix_experiments_in_project', ['project_id', 'id'], unique=False)
        batch_op.create_index('ix_experiments_latest', ['project_id', 'started_at', 'id'], unique=False)
        batch_op.create_index('ix_experiments_of_parent', ['parent_id'], unique=False, sqlite_where=sa.text('parent_id IS NOT NULL'), postgresql_where=sa.text('parent_id IS NOT NULL'))
        batch_op.create_index('ix_experiments_of_project', ['project_id', 'is_archived', 'owner_id', 'trial_count', 'state'], unique=False)
        batch_op.create_index(batch_op.f('ix_experiments_owner_id'), ['owner_id'], unique=False)
        batch_op.create_index('ix_experiments_starting', ['source_checkpoint'], unique=False, sqlite_where=sa.text('source_checkpoint IS NOT NULL'), postgresql_where=sa.text('source_checkpoint IS NOT NULL'))
        batch_op.create_index(batch_op.f('ix_experiments_state'), ['state'], unique=False)

    op.create_table('project_visits',
    sa.Column('user_id', sa.Integer(), nullable=False),
    sa.Column('project_id', sa.Integer(), nullable=False),
    sa.Column('visited_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['project_id'], ['projects.id'], name=op.f('fk_project_visits_project_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['user_id'], ['users.id'], name=op.f('fk_project_visits_user_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('user_id', 'project_id', name=op.f('pk_project_visits'))
    )
    with op.batch_alter_table('project_visits', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_project_visits_project_id'), ['project_id'], unique=False)

    op.create_table('webhook_deliveries',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('webhook_id', sa.Integer(), nullable=False),
    sa.Column('cause', sa.String(length=200), nullable=True),
    sa.Column('payload', Document, nullable=False),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('attempts', sa.Integer(), nullable=False),
    sa.Column('status', sa.Integer(), nullable=True),
    sa.Column('error', sa.Text(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('attempted_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['webhook_id'], ['webhooks.id'], name=op.f('fk_webhook_deliveries_webhook_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook_deliveries'))
    )
    with op.batch_alter_table('webhook_deliveries', schema=None) as batch_op:
        batch_op.create_index('ix_webhook_deliveries_of', ['webhook_id', 'created_at'], unique=False)
        batch_op.create_index('uq_webhook_deliveries_cause', ['webhook_id', 'cause'], unique=True, sqlite_where=sa.text('cause IS NOT NULL'), postgresql_where=sa.text('cause IS NOT NULL'))

    op.create_table('webhook_triggers',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('webhook_id', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=40), nullable=False),
    sa.Column('condition', Document, nullable=False),
    sa.ForeignKeyConstraint(['webhook_id'], ['webhooks.id'], name=op.f('fk_webhook_triggers_webhook_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook_triggers'))
    )
    with op.batch_alter_table('webhook_triggers', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_webhook_triggers_kind'), ['kind'], unique=False)
        batch_op.create_index(batch_op.f('ix_webhook_triggers_webhook_id'), ['webhook_id'], unique=False)

    op.create_table('audit_subjects',
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_audit_subjects_experiment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['number'], ['audit_entries.number'], name=op.f('fk_audit_subjects_number')),
    sa.PrimaryKeyConstraint('experiment_id', 'number', name=op.f('pk_audit_subjects'))
    )
    op.create_table('budgets',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=True),
    sa.Column('workspace_id', sa.Integer(), nullable=True),
    sa.Column('token_id', sa.Integer(), nullable=True),
    sa.Column('limits', Document, nullable=False),
    sa.Column('spent_slot_s', sa.Double(), nullable=False),
    sa.Column('held_slots', sa.Integer(), nullable=False),
    sa.Column('spent_price', sa.Double(), nullable=False),
    sa.Column('price_an_hour', sa.Double(), nullable=False),
    sa.Column('counted_at', UtcTime(), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('clock', Document, nullable=False),
    sa.Column('due_at', UtcTime(), nullable=True),
    sa.Column('notices', Document, nullable=False),
    sa.CheckConstraint('CASE WHEN experiment_id IS NULL THEN 0 ELSE 1 END + CASE WHEN workspace_id IS NULL THEN 0 ELSE 1 END + CASE WHEN token_id IS NULL THEN 0 ELSE 1 END = 1', name='one_subject'),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_budgets_experiment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['token_id'], ['user_tokens.id'], name=op.f('fk_budgets_token_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_budgets_workspace_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_budgets')),
    sa.UniqueConstraint('experiment_id', name=op.f('uq_budgets_experiment_id')),
    sa.UniqueConstraint('token_id', name=op.f('uq_budgets_token_id')),
    sa.UniqueConstraint('workspace_id', name=op.f('uq_budgets_workspace_id'))
    )
    with op.batch_alter_table('budgets', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_budgets_due_at'), ['due_at'], unique=False)

    op.create_table('campaign_contexts',
    sa.Column('campaign_id', sa.Integer(), nullable=False),
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('content', sa.LargeBinary(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['campaign_id'], ['campaigns.id'], name=op.f('fk_campaign_contexts_campaign_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('campaign_id', 'digest', name=op.f('pk_campaign_contexts'))
    )
    op.create_table('campaign_runs',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('campaign_id', sa.Integer(), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('version', sa.Integer(), nullable=False),
    sa.Column('workflow_id', sa.String(length=200), nullable=False),
    sa.Column('state', sa.String(length=12), nullable=False),
    sa.Column('wishes', sa.Integer(), nullable=False),
    sa.Column('started_by', sa.String(length=120), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('token_id', sa.Integer(), nullable=True),
    sa.Column('params', Document, nullable=False),
    sa.Column('is_fresh', sa.Boolean(), nullable=False),
    sa.Column('scheduled_at', UtcTime(), nullable=True),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('revision', sa.Integer(), nullable=False),
    sa.Column('started_at', UtcTime(), nullable=False),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['campaign_id'], ['campaigns.id'], name=op.f('fk_campaign_runs_campaign_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_campaign_runs_owner_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_campaign_runs')),
    sa.UniqueConstraint('campaign_id', 'number', name=op.f('uq_campaign_runs_campaign_id_number')),
    sa.UniqueConstraint('workflow_id', name=op.f('uq_campaign_runs_workflow_id')),
    sqlite_autoincrement=True
    )
    with op.batch_alter_table('campaign_runs', schema=None) as batch_op:
        batch_op.create_index('ix_campaign_runs_live', ['state'], unique=False, sqlite_where=sa.text('ended_at IS NULL'), postgresql_where=sa.text('ended_at IS NULL'))

    op.create_table('campaign_versions',
    sa.Column('campaign_id', sa.Integer(), nullable=False),
    sa.Column('version', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('written', sa.Text(), nullable=False),
    sa.Column('definition', sa.Text(), nullable=False),
    sa.Column('context', sa.String(length=64), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['campaign_id'], ['campaigns.id'], name=op.f('fk_campaign_versions_campaign_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('campaign_id', 'version', name=op.f('pk_campaign_versions'))
    )
    op.create_table('gates',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('what', sa.String(length=24), nullable=False),
    sa.Column('number', sa.Integer(), nullable=False),
    sa.Column('rule', Document, nullable=False),
    sa.Column('state', sa.String(length=12), nullable=False),
    sa.Column('asked_by', sa.String(length=120), nullable=False),
    sa.Column('asked_at', UtcTime(), nullable=False),
    sa.Column('due_at', UtcTime(), nullable=True),
    sa.Column('decided_at', UtcTime(), nullable=True),
    sa.Column('decided_by', sa.String(length=200), nullable=False),
    sa.Column('is_used', sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_gates_experiment_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_gates')),
    sa.UniqueConstraint('experiment_id', 'what', 'number', name=op.f('uq_gates_experiment_id_what_number'))
    )
    with op.batch_alter_table('gates', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_gates_due_at'), ['due_at'], unique=False)
        batch_op.create_index(batch_op.f('ix_gates_state'), ['state'], unique=False)

    op.create_table('held_starts',
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('payload', Document, nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_held_starts_experiment_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('experiment_id', name=op.f('pk_held_starts'))
    )
    op.create_table('decided_trials',
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('request_id', sa.String(length=36), nullable=False),
    sa.Column('number', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('decision', sa.Text(), nullable=True),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_decided_trials_experiment_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('experiment_id', 'request_id', 'number', name=op.f('pk_decided_trials')),
    sqlite_with_rowid=False
    )
    op.create_table('model_definitions',
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('content', sa.LargeBinary(), nullable=False),
    sa.Column('context_id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=True),
    sa.ForeignKeyConstraint(['context_id'], ['contexts.id'], name=op.f('fk_model_definitions_context_id')),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_model_definitions_experiment_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('experiment_id', name=op.f('pk_model_definitions'))
    )
    with op.batch_alter_table('model_definitions', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_model_definitions_context_id'), ['context_id'], unique=False)

    op.create_table('search_decisions',
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('number', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('decision', sa.Text(), nullable=False),
    sa.Column('decided_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_search_decisions_experiment_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('experiment_id', 'number', name=op.f('pk_search_decisions'))
    )
    op.create_table('storage_removals',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('uuids', Document, nullable=False),
    sa.Column('files', Document, nullable=False),
    sa.Column('tensorboard', sa.String(length=200), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('finished_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_storage_removals_experiment_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_storage_removals'))
    )
    with op.batch_alter_table('storage_removals', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_storage_removals_experiment_id'), ['experiment_id'], unique=False)

    op.create_table('trials',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('request_id', sa.String(length=36), nullable=False),
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('seed', sa.BigInteger(), nullable=False),
    sa.Column('hparams', Document, nullable=False),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('revision', sa.Integer(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('restarts', sa.Integer(), nullable=False),
    sa.Column('next_run_at', UtcTime(), nullable=True),
    sa.Column('factors', Document, nullable=True),
    sa.Column('continued_after', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.Integer(), nullable=False),
    sa.Column('metrics_run_id', sa.Integer(), nullable=False),
    sa.Column('rung', sa.Integer(), nullable=True),
    sa.Column('bracket', sa.Integer(), nullable=True),
    sa.Column('operation_length', sa.BigInteger(), nullable=True),
    sa.Column('asks_operations', sa.Boolean(), nullable=False),
    sa.Column('is_closed', sa.Boolean(), nullable=False),
    sa.Column('progress', sa.Double(), nullable=False),
    sa.Column('runner_state', sa.Text(), nullable=False),
    sa.Column('early_exit', sa.String(length=40), nullable=True),
    sa.Column('warm_start_checkpoint', sa.String(length=36), nullable=True),
    sa.Column('is_continuation', sa.Boolean(), nullable=False),
    sa.Column('inherits_id', sa.Integer(), nullable=True),
    sa.Column('total_batches', sa.BigInteger(), nullable=False),
    sa.Column('best_validation_id', sa.BigInteger(), nullable=True),
    sa.Column('latest_validation_id', sa.BigInteger(), nullable=True),
    sa.Column('searcher_metric', sa.Double(), nullable=True),
    sa.Column('latest_metric', sa.Double(), nullable=True),
    sa.Column('metadata', Document, nullable=True),
    sa.Column('log_retention_days', sa.Integer(), nullable=True),
    sa.Column('external_id', sa.String(length=255), nullable=True),
    sa.Column('heard_at', UtcTime(), nullable=True),
    sa.Column('summary', Document, nullable=False),
    sa.Column('sealed', Document, nullable=False),
    sa.Column('is_settled', sa.Boolean(), nullable=False),
    sa.Column('delays', Document, nullable=False),
    sa.Column('started_at', UtcTime(), nullable=False),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.Column('ended_batches', sa.BigInteger(), sa.Computed('CASE WHEN ended_at IS NOT NULL THEN total_batches END', persisted=True), nullable=True),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_trials_experiment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['inherits_id'], ['trials.id'], name=op.f('fk_trials_inherits_id'), ondelete='SET NULL'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_trials')),
    sa.UniqueConstraint('experiment_id', 'external_id', name=op.f('uq_trials_experiment_id_external_id')),
    sa.UniqueConstraint('experiment_id', 'request_id', name=op.f('uq_trials_experiment_id_request_id')),
    sa.UniqueConstraint('task_id', name=op.f('uq_trials_task_id')),
    sqlite_autoincrement=True
    )
    with op.batch_alter_table('trials', schema=None) as batch_op:
        batch_op.create_index('ix_trials_by_batches', ['experiment_id', 'ended_batches', 'id'], unique=False)
        batch_op.create_index('ix_trials_by_best', ['experiment_id', 'searcher_metric', 'id'], unique=False)
        batch_op.create_index('ix_trials_by_latest', ['experiment_id', 'latest_metric', 'id'], unique=False)
        batch_op.create_index('ix_trials_by_state', ['experiment_id', 'state'], unique=False)
        batch_op.create_index('ix_trials_inheriting', ['inherits_id'], unique=False, sqlite_where=sa.text('inherits_id IS NOT NULL'), postgresql_where=sa.text('inherits_id IS NOT NULL'))
        batch_op.create_index('ix_trials_of_experiment', ['experiment_id', 'id'], unique=False)
        batch_op.create_index('ix_trials_starting', ['warm_start_checkpoint'], unique=False, sqlite_where=sa.text('warm_start_checkpoint IS NOT NULL'), postgresql_where=sa.text('warm_start_checkpoint IS NOT NULL'))
        batch_op.create_index('ix_trials_taken_over', ['experiment_id'], unique=False, sqlite_where=sa.text('inherits_id IS NOT NULL'), postgresql_where=sa.text('inherits_id IS NOT NULL'))
        batch_op.create_index('ix_trials_unmanaged', ['state', 'heard_at'], unique=False, sqlite_where=sa.text('heard_at IS NOT NULL'), postgresql_where=sa.text('heard_at IS NOT NULL'))
        batch_op.create_index('ix_trials_unsettled', ['ended_at'], unique=False, sqlite_where=sa.text('is_settled = 0 AND ended_at IS NOT NULL'), postgresql_where=sa.text('is_settled = false AND ended_at IS NOT NULL'))
        batch_op.create_index('ix_trials_with_metadata', ['experiment_id'], unique=False, sqlite_where=sa.text('metadata IS NOT NULL'), postgresql_where=sa.text('metadata IS NOT NULL'))

    op.create_table('campaign_launches',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.Integer(), nullable=False),
    sa.Column('step', sa.String(length=40), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=12), nullable=False),
    sa.Column('config', Document, nullable=False),
    sa.Column('state', sa.String(length=12), nullable=False),
    sa.Column('due_at', UtcTime(), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=True),
    sa.Column('task_id', sa.String(length=80), nullable=True),
    sa.Column('outputs', Document, nullable=False),
    sa.Column('error', sa.Text(), nullable=False),
    sa.Column('commanded', sa.String(length=12), nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_campaign_launches_experiment_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['run_id'], ['campaign_runs.id'], name=op.f('fk_campaign_launches_run_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_campaign_launches')),
    sa.UniqueConstraint('run_id', 'step', 'attempt', name=op.f('uq_campaign_launches_run_id_step_attempt'))
    )
    with op.batch_alter_table('campaign_launches', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_campaign_launches_experiment_id'), ['experiment_id'], unique=False)
        batch_op.create_index('ix_campaign_launches_open', ['state'], unique=False, sqlite_where=sa.text("state IN ('WAITING', 'LAUNCHED')"), postgresql_where=sa.text("state IN ('WAITING', 'LAUNCHED')"))
        batch_op.create_index(batch_op.f('ix_campaign_launches_task_id'), ['task_id'], unique=False)

    op.create_table('campaign_steps',
    sa.Column('run_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.String(length=40), nullable=False),
    sa.Column('place', sa.Integer(), nullable=False),
    sa.Column('state', sa.String(length=12), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('outputs', Document, nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=True),
    sa.Column('task_id', sa.String(length=80), nullable=True),
    sa.Column('reused_from', sa.Integer(), nullable=True),
    sa.Column('started_at', UtcTime(), nullable=True),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_campaign_steps_experiment_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['run_id'], ['campaign_runs.id'], name=op.f('fk_campaign_steps_run_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('run_id', 'name', name=op.f('pk_campaign_steps'))
    )
    with op.batch_alter_table('campaign_steps', schema=None) as batch_op:
        batch_op.create_index('ix_campaign_steps_digest', ['digest'], unique=False)
        batch_op.create_index(batch_op.f('ix_campaign_steps_experiment_id'), ['experiment_id'], unique=False)

    op.create_table('metric_blocks',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('trial_id', sa.Integer(), nullable=False),
    sa.Column('group_name', sa.String(length=120), nullable=False),
    sa.Column('first_step', sa.BigInteger(), nullable=False),
    sa.Column('last_step', sa.BigInteger(), nullable=False),
    sa.Column('is_long', sa.Boolean(), nullable=False),
    sa.Column('is_settled', sa.Boolean(), nullable=False),
    sa.Column('steps', sa.LargeBinary(), nullable=False),
    sa.Column('times', sa.LargeBinary(), nullable=False),
    sa.Column('packed', sa.LargeBinary(), nullable=True),
    sa.Column('first_id', sa.BigInteger(), nullable=True),
    sa.Column('last_id', sa.BigInteger(), nullable=True),
    sa.Column('last_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_metric_blocks_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_metric_blocks')),
    sa.UniqueConstraint('trial_id', 'group_name', 'first_step', name=op.f('uq_metric_blocks_trial_id_group_name_first_step'))
    )
    with op.batch_alter_table('metric_blocks', schema=None) as batch_op:
        batch_op.create_index('ix_metric_blocks_unpacked', ['trial_id', 'group_name'], unique=False, sqlite_where=sa.text('is_settled = 1 AND packed IS NULL'), postgresql_where=sa.text('is_settled AND packed IS NULL'))

    op.create_table('metric_columns',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('trial_id', sa.Integer(), nullable=False),
    sa.Column('group_name', sa.String(length=120), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('first_step', sa.BigInteger(), nullable=False),
    sa.Column('last_step', sa.BigInteger(), nullable=False),
    sa.Column('finite', sa.Integer(), nullable=True),
    sa.Column('outline', sa.LargeBinary(), nullable=True),
    sa.Column('numbers', sa.LargeBinary(), nullable=False),
    sa.Column('places', sa.LargeBinary(), nullable=True),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_metric_columns_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_metric_columns')),
    sa.UniqueConstraint('trial_id', 'group_name', 'name', 'first_step', name=op.f('uq_metric_columns_trial_id_group_name_name_first_step'))
    )
    op.create_table('metrics',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('trial_id', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.Integer(), nullable=False),
    sa.Column('group_name', sa.String(length=120), nullable=False),
    sa.Column('total_batches', sa.BigInteger(), nullable=True),
    sa.Column('metrics', Document, nullable=False),
    sa.Column('batch_metrics', Document, nullable=True),
    sa.Column('searcher_metric', sa.Double(), nullable=True),
    sa.Column('archived', sa.Boolean(), nullable=False),
    sa.Column('reported_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_metrics_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_metrics')),
    sqlite_autoincrement=True
    )
    with op.batch_alter_table('metrics', schema=None) as batch_op:
        batch_op.create_index('ix_metrics_system', ['trial_id', 'reported_at'], unique=False, sqlite_where=sa.text('total_batches IS NULL'), postgresql_where=sa.text('total_batches IS NULL'))
        batch_op.create_index(batch_op.f('ix_metrics_trial_id'), ['trial_id'], unique=False)
        batch_op.create_index('uq_metrics_current', ['trial_id', 'group_name', 'total_batches'], unique=True, sqlite_where=sa.text('archived = 0 AND total_batches IS NOT NULL'), postgresql_where=sa.text('archived = false AND total_batches IS NOT NULL'))

    op.create_table('tasks',
    sa.Column('id', sa.String(length=80), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('token_id', sa.Integer(), nullable=True),
    sa.Column('workspace_id', sa.Integer(), nullable=True),
    sa.Column('trial_id', sa.Integer(), nullable=True),
    sa.Column('job_id', sa.String(length=36), nullable=False),
    sa.Column('config', WholeDocument, nullable=True),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('started_at', UtcTime(), nullable=False),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.Column('name', sa.Text(), nullable=True),
    sa.Column('pool', sa.String(length=120), nullable=True),
    sa.Column('slots', sa.Integer(), nullable=True),
    sa.Column('queue_position', sa.BigInteger(), nullable=True),
    sa.Column('written', sa.Text(), nullable=True),
    sa.Column('parent_id', sa.String(length=80), nullable=True),
    sa.Column('forked_from', sa.String(length=80), nullable=True),
    sa.Column('is_pausable', sa.Boolean(), nullable=True),
    sa.Column('message', sa.Text(), nullable=True),
    sa.Column('restarts', sa.Integer(), server_default='0', nullable=False),
    sa.Column('wishes', sa.Integer(), server_default='0', nullable=False),
    sa.Column('revision', sa.Integer(), server_default='0', nullable=False),
    sa.Column('last_used_at', UtcTime(), nullable=True),
    sa.Column('login_user', sa.String(length=40), nullable=True),
    sa.Column('sources', Document, nullable=True),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_tasks_owner_id')),
    sa.ForeignKeyConstraint(['parent_id'], ['tasks.id'], name=op.f('fk_tasks_parent_id')),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_tasks_trial_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['workspace_id'], ['workspaces.id'], name=op.f('fk_tasks_workspace_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_tasks'))
    )
    with op.batch_alter_table('tasks', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_tasks_ended_at'), ['ended_at'], unique=False)
        batch_op.create_index('ix_tasks_in_pool', ['pool'], unique=False, sqlite_where=sa.text('pool IS NOT NULL AND ended_at IS NULL'), postgresql_where=sa.text('pool IS NOT NULL AND ended_at IS NULL'))
        batch_op.create_index(batch_op.f('ix_tasks_job_id'), ['job_id'], unique=False)
        batch_op.create_index('ix_tasks_of_kind', ['kind', 'started_at'], unique=False, sqlite_where=sa.text('workspace_id IS NOT NULL'), postgresql_where=sa.text('workspace_id IS NOT NULL'))
        batch_op.create_index(batch_op.f('ix_tasks_parent_id'), ['parent_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_tasks_trial_id'), ['trial_id'], unique=False)

    op.create_table('allocations',
    sa.Column('id', sa.String(length=100), nullable=False),
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('trial_id', sa.Integer(), nullable=True),
    sa.Column('experiment_id', sa.Integer(), nullable=True),
    sa.Column('run_id', sa.Integer(), nullable=False),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('pool', sa.String(length=120), nullable=False),
    sa.Column('slots', sa.Integer(), nullable=False),
    sa.Column('shared_secret', sa.String(length=64), nullable=False),
    sa.Column('placements', Document, nullable=False),
    sa.Column('started_at', UtcTime(), nullable=False),
    sa.Column('ready_at', UtcTime(), nullable=True),
    sa.Column('preempt_requested_at', UtcTime(), nullable=True),
    sa.Column('preempt_reason', sa.Text(), nullable=False),
    sa.Column('preempt_acked_at', UtcTime(), nullable=True),
    sa.Column('ended_at', UtcTime(), nullable=True),
    sa.Column('end_kind', sa.String(length=24), nullable=True),
    sa.Column('end_cause', sa.String(length=40), nullable=True),
    sa.Column('end_message', sa.Text(), nullable=False),
    sa.Column('exit_code', sa.Integer(), nullable=True),
    sa.Column('price_an_hour', sa.Double(), server_default='0', nullable=False),
    sa.Column('budgets', Document, nullable=False),
    sa.Column('accelerators', Document, nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_allocations_experiment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['task_id'], ['tasks.id'], name=op.f('fk_allocations_task_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_allocations_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_allocations'))
    )
    with op.batch_alter_table('allocations', schema=None) as batch_op:
        batch_op.create_index('ix_allocations_ended', ['experiment_id', 'ended_at'], unique=False)
        batch_op.create_index(batch_op.f('ix_allocations_ended_at'), ['ended_at'], unique=False)
        batch_op.create_index('ix_allocations_failed', ['experiment_id', 'ended_at'], unique=False, sqlite_where=sa.text("end_kind IN ('failed', 'fatal', 'system')"), postgresql_where=sa.text("end_kind IN ('failed', 'fatal', 'system')"))
        batch_op.create_index('ix_allocations_of_experiment', ['experiment_id', 'started_at'], unique=False)
        batch_op.create_index('ix_allocations_task_id_run_id', ['task_id', 'run_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_allocations_trial_id'), ['trial_id'], unique=False)

    op.create_table('checkpoints',
    sa.Column('uuid', sa.String(length=36), nullable=False),
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('allocation_id', sa.String(length=100), nullable=False),
    sa.Column('trial_id', sa.Integer(), nullable=False),
    sa.Column('experiment_id', sa.Integer(), nullable=False),
    sa.Column('state', sa.String(length=24), nullable=False),
    sa.Column('resources', Document, nullable=False),
    sa.Column('metadata', Document, nullable=False),
    sa.Column('steps_completed', sa.BigInteger(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('reported_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['experiment_id'], ['experiments.id'], name=op.f('fk_checkpoints_experiment_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['task_id'], ['tasks.id'], name=op.f('fk_checkpoints_task_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_checkpoints_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('uuid', name=op.f('pk_checkpoints'))
    )
    with op.batch_alter_table('checkpoints', schema=None) as batch_op:
        batch_op.create_index('ix_checkpoints_of_experiment', ['experiment_id', 'state', 'size_bytes'], unique=False)
        batch_op.create_index(batch_op.f('ix_checkpoints_task_id'), ['task_id'], unique=False)
        batch_op.create_index(batch_op.f('ix_checkpoints_trial_id'), ['trial_id'], unique=False)

    op.create_table('task_contexts',
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('content', sa.LargeBinary(), nullable=False),
    sa.Column('context_id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=True),
    sa.ForeignKeyConstraint(['context_id'], ['contexts.id'], name=op.f('fk_task_contexts_context_id')),
    sa.ForeignKeyConstraint(['task_id'], ['tasks.id'], name=op.f('fk_task_contexts_task_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('task_id', name=op.f('pk_task_contexts'))
    )
    with op.batch_alter_table('task_contexts', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_task_contexts_context_id'), ['context_id'], unique=False)

    op.create_table('task_dependencies',
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('needs_id', sa.String(length=80), nullable=False),
    sa.Column('any_end', sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(['needs_id'], ['tasks.id'], name=op.f('fk_task_dependencies_needs_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['task_id'], ['tasks.id'], name=op.f('fk_task_dependencies_task_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('task_id', 'needs_id', name=op.f('pk_task_dependencies'))
    )
    with op.batch_alter_table('task_dependencies', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_task_dependencies_needs_id'), ['needs_id'], unique=False)

    op.create_table('task_secrets',
    sa.Column('task_id', sa.String(length=80), nullable=False),
    sa.Column('name', sa.String(length=40), nullable=False),
    sa.Column('value', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['task_id'], ['tasks.id'], name=op.f('fk_task_secrets_task_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('task_id', 'name', name=op.f('pk_task_secrets'))
    )
    op.create_table('allocation_containers',
    sa.Column('allocation_id', sa.String(length=100), nullable=False),
    sa.Column('rank', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('token_hash', sa.String(length=64), nullable=False),
    sa.Column('attempted_at', UtcTime(), nullable=False),
    sa.Column('arrived_at', UtcTime(), nullable=True),
    sa.Column('node', sa.String(length=255), nullable=False),
    sa.Column('address', sa.String(length=255), nullable=False),
    sa.Column('waits_for', sa.Text(), nullable=False),
    sa.Column('killed_at', UtcTime(), nullable=True),
    sa.ForeignKeyConstraint(['allocation_id'], ['allocations.id'], name=op.f('fk_allocation_containers_allocation_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('allocation_id', 'rank', name=op.f('pk_allocation_containers')),
    sa.UniqueConstraint('token_hash', name=op.f('uq_allocation_containers_token_hash'))
    )
    op.create_table('log_policy_matches',
    sa.Column('allocation_id', sa.String(length=100), nullable=False),
    sa.Column('policy', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('agent_id', sa.String(length=120), nullable=False),
    sa.Column('trial_id', sa.Integer(), nullable=False),
    sa.Column('name', sa.Text(), nullable=True),
    sa.Column('pattern', sa.Text(), nullable=False),
    sa.Column('action', sa.String(length=24), nullable=True),
    sa.Column('line', sa.Text(), nullable=False),
    sa.Column('matched_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['allocation_id'], ['allocations.id'], name=op.f('fk_log_policy_matches_allocation_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_log_policy_matches_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('allocation_id', 'policy', 'agent_id', name=op.f('pk_log_policy_matches'))
    )
    with op.batch_alter_table('log_policy_matches', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_log_policy_matches_trial_id'), ['trial_id'], unique=False)

    op.create_table('model_versions',
    sa.Column('id', sa.Integer(), nullable=False),
    sa.Column('model_id', sa.Integer(), nullable=False),
    sa.Column('version', sa.Integer(), nullable=False),
    sa.Column('checkpoint_uuid', sa.String(length=36), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('comment', sa.Text(), nullable=False),
    sa.Column('notes', sa.Text(), nullable=False),
    sa.Column('labels', Document, nullable=False),
    sa.Column('metadata', Document, nullable=False),
    sa.Column('owner_id', sa.Integer(), nullable=False),
    sa.Column('created_at', UtcTime(), nullable=False),
    sa.Column('updated_at', UtcTime(), nullable=False),
    sa.ForeignKeyConstraint(['checkpoint_uuid'], ['checkpoints.uuid'], name=op.f('fk_model_versions_checkpoint_uuid')),
    sa.ForeignKeyConstraint(['model_id'], ['models.id'], name=op.f('fk_model_versions_model_id'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['owner_id'], ['users.id'], name=op.f('fk_model_versions_owner_id')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_model_versions')),
    sa.UniqueConstraint('model_id', 'version', name=op.f('uq_model_versions_model_id_version'))
    )
    with op.batch_alter_table('model_versions', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_model_versions_checkpoint_uuid'), ['checkpoint_uuid'], unique=False)
        batch_op.create_index(batch_op.f('ix_model_versions_owner_id'), ['owner_id'], unique=False)

    op.create_table('trial_sources',
    sa.Column('trial_id', sa.Integer(), nullable=False),
    sa.Column('checkpoint_uuid', sa.String(length=36), nullable=False),
    sa.Column('kind', sa.String(length=24), nullable=False),
    sa.Column('model_id', sa.Integer(), nullable=True),
    sa.Column('model_version', sa.Integer(), nullable=True),
    sa.ForeignKeyConstraint(['checkpoint_uuid'], ['checkpoints.uuid'], name=op.f('fk_trial_sources_checkpoint_uuid'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['model_id'], ['models.id'], name=op.f('fk_trial_sources_model_id'), ondelete='SET NULL'),
    sa.ForeignKeyConstraint(['trial_id'], ['trials.id'], name=op.f('fk_trial_sources_trial_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('trial_id', 'checkpoint_uuid', name=op.f('pk_trial_sources'))
    )
    with op.batch_alter_table('trial_sources', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_trial_sources_checkpoint_uuid'), ['checkpoint_uuid'], unique=False)
        batch_op.create_index('ix_trial_sources_version', ['model_id', 'model_version'], unique=False)



def downgrade() -> None:
    with op.batch_alter_table('trial_sources', schema=None) as batch_op:
        batch_op.drop_index('ix_trial_sources_version')
        batch_op.drop_index(batch_op.f('ix_trial_sources_checkpoint_uuid'))

    op.drop_table('trial_sources')
    with op.batch_alter_table('model_versions', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_model_versions_owner_id'))
        batch_op.drop_index(batch_op.f('ix_model_versions_checkpoint_uuid'))

    op.drop_table('model_versions')
    with op.batch_alter_table('log_policy_matches', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_log_policy_matches_trial_id'))

    op.drop_table('log_policy_matches')
    op.drop_table('allocation_containers')
    op.drop_table('task_secrets')
    with op.batch_alter_table('task_dependencies', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_task_dependencies_needs_id'))

    op.drop_table('task_dependencies')
    with op.batch_alter_table('task_contexts', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_task_contexts_context_id'))

    op.drop_table('task_contexts')
    with op.batch_alter_table('checkpoints', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_checkpoints_trial_id'))
        batch_op.drop_index(batch_op.f('ix_checkpoints_task_id'))
        batch_op.drop_index('ix_checkpoints_of_experiment')

    op.drop_table('checkpoints')
    with op.batch_alter_table('allocations', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_allocations_trial_id'))
        batch_op.drop_index('ix_allocations_task_id_run_id')
        batch_op.drop_index('ix_allocations_of_experiment')
        batch_op.drop_index('ix_allocations_failed', sqlite_where=sa.text("end_kind IN ('failed', 'fatal', 'system')"), postgresql_where=sa.text("end_kind IN ('failed', 'fatal', 'system')"))
        batch_op.drop_index(batch_op.f('ix_allocations_ended_at'))
        batch_op.drop_index('ix_allocations_ended')

    op.drop_table('allocations')
    with op.batch_alter_table('tasks', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_tasks_trial_id'))
        batch_op.drop_index(batch_op.f('ix_tasks_parent_id'))
        batch_op.drop_index('ix_tasks_in_pool', sqlite_where=sa.text('pool IS NOT NULL AND ended_at IS NULL'), postgresql_where=sa.text('pool IS NOT NULL AND ended_at IS NULL'))
        batch_op.drop_index('ix_tasks_of_kind', sqlite_where=sa.text('workspace_id IS NOT NULL'), postgresql_where=sa.text('workspace_id IS NOT NULL'))
        batch_op.drop_index(batch_op.f('ix_tasks_job_id'))
        batch_op.drop_index(batch_op.f('ix_tasks_ended_at'))

    op.drop_table('tasks')
    with op.batch_alter_table('metrics', schema=None) as batch_op:
        batch_op.drop_index('uq_metrics_current', sqlite_where=sa.text('archived = 0 AND total_batches IS NOT NULL'), postgresql_where=sa.text('archived = false AND total_batches IS NOT NULL'))
        batch_op.drop_index(batch_op.f('ix_metrics_trial_id'))
        batch_op.drop_index('ix_metrics_system', sqlite_where=sa.text('total_batches IS NULL'), postgresql_where=sa.text('total_batches IS NULL'))

    op.drop_table('metrics')
    op.drop_table('metric_columns')
    with op.batch_alter_table('metric_blocks', schema=None) as batch_op:
        batch_op.drop_index('ix_metric_blocks_unpacked', sqlite_where=sa.text('is_settled = 1 AND packed IS NULL'), postgresql_where=sa.text('is_settled AND packed IS NULL'))

    op.drop_table('metric_blocks')
    with op.batch_alter_table('campaign_steps', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_campaign_steps_experiment_id'))
        batch_op.drop_index('ix_campaign_steps_digest')

    op.drop_table('campaign_steps')
    with op.batch_alter_table('campaign_launches', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_campaign_launches_task_id'))
        batch_op.drop_index('ix_campaign_launches_open', sqlite_where=sa.text("state IN ('WAITING', 'LAUNCHED')"), postgresql_where=sa.text("state IN ('WAITING', 'LAUNCHED')"))
        batch_op.drop_index(batch_op.f('ix_campaign_launches_experiment_id'))

    op.drop_table('campaign_launches')
    with op.batch_alter_table('trials', schema=None) as batch_op:
        batch_op.drop_index('ix_trials_by_batches')
        batch_op.drop_index('ix_trials_by_best')
        batch_op.drop_index('ix_trials_of_experiment')
        batch_op.drop_index('ix_trials_by_state')
        batch_op.drop_index('ix_trials_by_latest')
        batch_op.drop_index('ix_trials_inheriting', sqlite_where=sa.text('inherits_id IS NOT NULL'), postgresql_where=sa.text('inherits_id IS NOT NULL'))
        batch_op.drop_index('ix_trials_taken_over', sqlite_where=sa.text('inherits_id IS NOT NULL'), postgresql_where=sa.text('inherits_id IS NOT NULL'))
        batch_op.drop_index('ix_trials_starting', sqlite_where=sa.text('warm_start_checkpoint IS NOT NULL'), postgresql_where=sa.text('warm_start_checkpoint IS NOT NULL'))
        batch_op.drop_index('ix_trials_unmanaged', sqlite_where=sa.text('heard_at IS NOT NULL'), postgresql_where=sa.text('heard_at IS NOT NULL'))
        batch_op.drop_index('ix_trials_with_metadata', sqlite_where=sa.text('metadata IS NOT NULL'), postgresql_where=sa.text('metadata IS NOT NULL'))
        batch_op.drop_index('ix_trials_unsettled', sqlite_where=sa.text('is_settled = 0 AND ended_at IS NOT NULL'), postgresql_where=sa.text('is_settled = false AND ended_at IS NOT NULL'))

    op.drop_table('trials')
    with op.batch_alter_table('storage_removals', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_storage_removals_experiment_id'))

    op.drop_table('storage_removals')
    op.drop_table('search_decisions')
    op.drop_table('decided_trials')
    with op.batch_alter_table('model_definitions', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_model_definitions_context_id'))

    op.drop_table('model_definitions')
    op.drop_table('held_starts')
    with op.batch_alter_table('gates', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_gates_state'))
        batch_op.drop_index(batch_op.f('ix_gates_due_at'))

    op.drop_table('gates')
    op.drop_table('campaign_versions')
    with op.batch_alter_table('campaign_runs', schema=None) as batch_op:
        batch_op.drop_index('ix_campaign_runs_live', sqlite_where=sa.text('ended_at IS NULL'), postgresql_where=sa.text('ended_at IS NULL'))

    op.drop_table('campaign_runs')
    op.drop_table('campaign_contexts')
    with op.batch_alter_table('budgets', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_budgets_due_at'))

    op.drop_table('budgets')
    op.drop_table('audit_subjects')
    with op.batch_alter_table('webhook_triggers', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_webhook_triggers_webhook_id'))
        batch_op.drop_index(batch_op.f('ix_webhook_triggers_kind'))

    op.drop_table('webhook_triggers')
    with op.batch_alter_table('webhook_deliveries', schema=None) as batch_op:
        batch_op.drop_index('uq_webhook_deliveries_cause', sqlite_where=sa.text('cause IS NOT NULL'), postgresql_where=sa.text('cause IS NOT NULL'))
        batch_op.drop_index('ix_webhook_deliveries_of')

    op.drop_table('webhook_deliveries')
    with op.batch_alter_table('project_visits', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_project_visits_project_id'))

    op.drop_table('project_visits')
    with op.batch_alter_table('experiments', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_experiments_state'))
        batch_op.drop_index('ix_experiments_starting', sqlite_where=sa.text('source_checkpoint IS NOT NULL'), postgresql_where=sa.text('source_checkpoint IS NOT NULL'))
        batch_op.drop_index(batch_op.f('ix_experiments_owner_id'))
        batch_op.drop_index('ix_experiments_by_start')
        batch_op.drop_index('ix_experiments_latest')
        batch_op.drop_index('ix_experiments_in_project')
        batch_op.drop_index('ix_experiments_of_parent', sqlite_where=sa.text('parent_id IS NOT NULL'), postgresql_where=sa.text('parent_id IS NOT NULL'))
        batch_op.drop_index('ix_experiments_of_project')
        if op.get_context().dialect.name == 'sqlite':
            batch_op.drop_index('ix_experiments_by_name')

    op.drop_table('experiments')
    with op.batch_alter_table('campaigns', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_campaigns_workspace_id'))
        batch_op.drop_index(batch_op.f('ix_campaigns_project_id'))
        batch_op.drop_index(batch_op.f('ix_campaigns_owner_id'))

    op.drop_table('campaigns')
    with op.batch_alter_table('workspace_pins', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_workspace_pins_workspace_id'))

    op.drop_table('workspace_pins')
    with op.batch_alter_table('webhooks', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_webhooks_workspace_id'))

    op.drop_table('webhooks')
    with op.batch_alter_table('templates', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_templates_workspace_id'))

    op.drop_table('templates')
    with op.batch_alter_table('role_assignments', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_role_assignments_workspace_id'))
        batch_op.drop_index('ix_role_assignments_holder')
        batch_op.drop_index(batch_op.f('ix_role_assignments_group_id'))

    op.drop_table('role_assignments')
    op.drop_table('projects')
    with op.batch_alter_table('pool_grants', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_pool_grants_workspace_id'))
        batch_op.drop_index(batch_op.f('ix_pool_grants_user_id'))
        batch_op.drop_index(batch_op.f('ix_pool_grants_group_id'))

    op.drop_table('pool_grants')
    with op.batch_alter_table('pool_bindings', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_pool_bindings_workspace_id'))

    op.drop_table('pool_bindings')
    op.drop_table('namespace_bindings')
    with op.batch_alter_table('models', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_models_workspace_id'))
        batch_op.drop_index(batch_op.f('ix_models_owner_id'))

    op.drop_table('models')
    op.drop_table('import_tables')
    with op.batch_alter_table('context_parts', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_context_parts_chunk_id'))

    op.drop_table('context_parts')
    op.drop_table('context_chunk_data')
    with op.batch_alter_table('config_policies', schema=None) as batch_op:
        batch_op.drop_index('uq_config_policies_cluster', sqlite_where=sa.text('workspace_id IS NULL'), postgresql_where=sa.text('workspace_id IS NULL'))

    op.drop_table('config_policies')
    with op.batch_alter_table('workspaces', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_workspaces_owner_id'))

    op.drop_table('workspaces')
    with op.batch_alter_table('user_tokens', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_user_tokens_user_id'))

    op.drop_table('user_tokens')
    op.drop_table('user_settings')
    with op.batch_alter_table('submissions', schema=None) as batch_op:
        batch_op.drop_index('ix_submissions_of')

    op.drop_table('submissions')
    op.drop_table('imports')
    with op.batch_alter_table('group_members', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_group_members_user_id'))

    op.drop_table('group_members')
    with op.batch_alter_table('contexts', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_contexts_used_at'))

    op.drop_table('contexts')
    with op.batch_alter_table('context_chunks', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_context_chunks_used_at'))

    op.drop_table('context_chunks')
    op.drop_table('cluster_messages')
    op.drop_table('agent_join_tokens')
    op.drop_table('users')
    op.drop_table('token_keys')
    with op.batch_alter_table('log_block_containers', schema=None) as batch_op:
        batch_op.drop_index('ix_log_block_containers_container_id_last_offset')

    op.drop_table('log_block_containers')
    with op.batch_alter_table('log_blocks', schema=None) as batch_op:
        batch_op.drop_index('ix_log_blocks_severe', sqlite_where=sa.text('is_severe = 1'), postgresql_where=sa.text('is_severe'))

    op.drop_table('log_blocks')
    with op.batch_alter_table('task_logs', schema=None) as batch_op:
        batch_op.drop_index('ix_task_logs_task_id_id')
        batch_op.drop_index('ix_task_logs_severe', sqlite_where=sa.text("level IN ('WARNING', 'ERROR', 'CRITICAL')"), postgresql_where=sa.text("level IN ('WARNING', 'ERROR', 'CRITICAL')"))

    op.drop_table('task_logs')
    op.drop_table('resource_pools')
    op.drop_table('pool_samples')
    with op.batch_alter_table('outbox', schema=None) as batch_op:
        batch_op.drop_index('ix_outbox_waiting', sqlite_where=sa.text('sent_at IS NULL'), postgresql_where=sa.text('sent_at IS NULL'))

    op.drop_table('outbox')
    with op.batch_alter_table('login_failures', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_login_failures_last_at'))

    op.drop_table('login_failures')
    with op.batch_alter_table('import_marks', schema=None) as batch_op:
        batch_op.drop_index('ix_import_marks_ours')

    op.drop_table('import_marks')
    op.drop_table('groups')
    op.drop_table('cluster')
    with op.batch_alter_table('audit_entries', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_audit_entries_route'))
        batch_op.drop_index(batch_op.f('ix_audit_entries_at'))
        batch_op.drop_index(batch_op.f('ix_audit_entries_actor_id'))

    op.drop_table('audit_entries')
    op.drop_table('api_processes')
    with op.batch_alter_table('answered_requests', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_answered_requests_at'))

    op.drop_table('answered_requests')
    op.drop_table('agents')
